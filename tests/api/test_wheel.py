"""What is built is what users get: the wheel in an empty virtual environment, with nothing else."""

import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.api.test_typing import ROOT, USE, check_types
from tests.docs.reader import build_wheel

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("empty")
    build_wheel(folder / "wheels")
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / "bin"
    (wheel,) = (folder / "wheels").glob("fclub-*.whl")
    locked = ["--constraint", str(ROOT / "requirements.lock"), "--quiet"]
    subprocess.run([programs / "pip", "install", *locked, wheel], check=True)
    return programs


@pytest.fixture
def run(empty: Path, tmp_path: Path) -> Run:
    """Run a program of that environment in a folder of the test's own."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [empty / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=inherited | {"FCLUB_CACHE_DIR": str(tmp_path / "cache")},
        )

    return run


def test_the_demo_runs(run: Run, tmp_path: Path) -> None:
    done = run("fclub", "demo", "--rounds", "2000", "--seeds", "1", "--no-open")
    assert done.returncode == 0, done.stderr
    assert "fclub-plus" in done.stdout
    assert (tmp_path / "out" / "demo" / "report.html").stat().st_size > 100_000


def test_mypy_sees_its_types(empty: Path, tmp_path: Path) -> None:
    options = (f"--python-executable={empty / 'python'}", f"--cache-dir={tmp_path}")
    done = check_types(*options, USE)
    assert done.returncode == 0, done.stdout


def test_what_needs_the_extra_says_so(run: Run) -> None:
    for command in ("local", "global", "up"):
        done = run("fclub", command)
        assert done.returncode == 1
        assert done.stderr.startswith(f"fclub: fclub {command} needs the extra service: pip install")
    done = run("python", "-c", "import fclub; fclub.Client('http://localhost', 'token')")
    assert "fclub.Client needs the extra service: pip install" in done.stderr
