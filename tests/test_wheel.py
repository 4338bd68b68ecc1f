"""The wheel that this checkout builds works in an environment that holds nothing else."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest
from tests.api.test_typing import USE, check_types
from tests.docs.pages import ROOT
from tests.docs.reader import build_wheel


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of an environment are that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("empty")
    build_wheel(folder / "wheels")
    (wheel,) = (folder / "wheels").glob("fclub-*.whl")
    venv.create(folder / "environment", with_pip=True)
    found = folder / "environment" / "bin"
    install = [found / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    locked = ["--constraint", ROOT / "requirements.lock"]
    done = run(*install, *locked, wheel)
    if "Could not find a version" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return found


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Without the paths of these tests, so that only the environment's own packages are found."""
    words = [str(word) for word in command]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, env=variables
    )


@pytest.mark.slow
def test_the_demo_runs(programs: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path, "--no-open")
    done = run(programs / "fclub", "demo", "--rounds", 2000, "--seeds", 1, *out)
    assert done.returncode == 0, done.stderr
    assert "cdp-fclub-plus" in done.stdout
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_the_service_says_what_to_install(programs: Path) -> None:
    for command in ("up", "local", "global"):
        done = run(programs / "fclub", command)
        assert done.returncode != 0
        assert "fclub[service]" in done.stderr
        assert "Traceback" not in done.stderr
    done = run(programs / "python", "-c", "import fclub; fclub.Client('http://localhost', 'token')")
    assert "fclub.Client needs the extra service: pip install" in done.stderr


@pytest.mark.slow
def test_a_type_checker_sees_the_types(programs: Path, tmp_path: Path) -> None:
    done = check_types(f"--python-executable={programs / 'python'}", f"--cache-dir={tmp_path}", USE)
    assert done.returncode == 0, done.stdout
