"""`fclub-client`, the client as a distribution of its own, against a running server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.docs.pages import ROOT

from fclub.service.serve import local_app

from .conftest import TOKEN, local_settings, serving

SCRIPT = """
import asyncio, sys
import fclub_client
from fclub_client import AsyncClient, Client, RequestFailed

url, token = sys.argv[1:]
with Client(url, token) as shop:
    shop.put_items({"a": [1, 0, 0, 0], "b": [0, 1, 0, 0]}, {"a": {"categories": ["tea"]}})
    shown = shop.recommend("ann", where={"category": "tea"})
    assert shown.item == "a" and shop.feedback(shown.decision, 1.0)
    try:
        shop.item("c")
    except RequestFailed as error:
        assert error.status == 404

async def ask():
    async with AsyncClient(url, token) as shop:
        return await shop.recommend_several("ann", 5)

assert [one.item for one in asyncio.run(ask())] == ["b"]
assert not {"fclub", "numpy", "numba", "scipy"} & sys.modules.keys()
print(fclub_client.__file__)
"""


@pytest.mark.slow
def test_the_client_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    subprocess.run([*build, *alone, str(ROOT / "client")], check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("fclub_client-*.whl")
    with ZipFile(wheel) as file:
        file.extractall(tmp_path / "there")
        assert sum(one.file_size for one in file.infolist()) < 200_000
        for name in ("buckets", "client", "errors", "exchanges", "extras"):
            source = (ROOT / "src" / "fclub" / f"{name}.py").read_bytes()
            assert file.read(f"fclub_client/{name}.py") == source
        (about,) = (name for name in file.namelist() if name.endswith("METADATA"))
        needed = [line for line in file.read(about).decode().splitlines() if "Requires-Dist" in line]
    assert needed == ["Requires-Dist: httpx>=0.27"]
    with serving(local_app(local_settings(tmp_path))[0]) as client:
        variables = os.environ | {"PYTHONPATH": str(tmp_path / "there")}
        command = [sys.executable, "-c", SCRIPT, str(client.base_url), TOKEN]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
