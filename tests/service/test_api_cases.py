"""Property-based API testing against the running service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from fclub.service.serve import local_app

from .conftest import HEADERS, local_settings, serving

CASES = int(os.environ.get("FCLUB_API_CASES", "500"))
"""500 as a gate; the full form sets FCLUB_API_CASES=5000."""

OPERATIONS = 5
"""Those with a body or a parameter to vary; the others have one case each."""


@pytest.mark.slow
def test_no_case_makes_the_server_fail(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    with serving(local_app(local_settings(tmp_path))[0]) as client:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{client.base_url}/openapi.json"),
            *("--header", f"Authorization: {HEADERS['Authorization']}"),
            *("--checks", "not_a_server_error,status_code_conformance,response_schema_conformance"),
            *("--phases", "fuzzing", "--mode", "all"),
            *("--max-examples", str(CASES // OPERATIONS + 1), "--generation-deterministic"),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
        generated = re.search(r"(\d+) generated", result.stdout)
        assert generated is not None, result.stdout
        assert int(generated[1]) >= 0.9 * CASES
        check_only_accepted_requests_count(client)


def check_only_accepted_requests_count(client: httpx.Client) -> None:
    """Nobody was learned from, and users came only by recommendations that were answered."""
    text = client.get("/metrics").text
    users = float(re.search(r"^fclub_users (\S+)$", text, re.MULTILINE)[1])
    learned = float(re.search(r"^fclub_observations_total (\S+)$", text, re.MULTILINE)[1])
    answered = sum(
        float(value)
        for value in re.findall(
            r'^fclub_http_requests_total\{route="/v1/recommend(?:/batch)?",status="200"\} (\S+)$',
            text,
            re.MULTILINE,
        )
    )
    assert learned == 0, "no case can guess a decision"
    assert users <= answered * 10
