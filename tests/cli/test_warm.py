"""`fclub warm`: kernels are compiled once, before anybody waits for them, and it is said."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.conftest import Command

from fclub.cli.up import compile_live
from fclub.service.settings import Model

LINE = "compiling, once per machine and version"


@pytest.fixture
def unmarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is marked as compiled, though the kernels may be there."""
    monkeypatch.setattr("fclub.core.compiling.cache_folder", lambda: str(tmp_path))
    monkeypatch.setattr("fclub.core.compiling.numba_config.DISABLE_JIT", 0)


@pytest.mark.usefixtures("unmarked")
def test_it_says_once_what_it_compiles(command: Command) -> None:
    words = ("warm", "--policy", "linucb", "--policy", "homo", "--jobs", "1")
    first, second = command(*words), command(*words)
    assert first.returncode == second.returncode == 0
    assert f"{LINE}: linucb, homo" in first.stderr
    assert f"{LINE}: servers of homo" in first.stderr
    assert second.stderr == ""


@pytest.mark.usefixtures("unmarked")
def test_a_first_run_says_it_too(command: Command) -> None:
    words = ("run", "--policy", "linucb", "--rounds", "20", "--seeds", "1", "--jobs", "1", "--json")
    assert f"{LINE}: linucb" in command(*words).stderr
    assert LINE not in command(*words).stderr


@pytest.mark.usefixtures("unmarked")
def test_servers_are_compiled_by_their_policy() -> None:
    """Numbers do not decide which kernels there are."""
    for model, told in (
        (Model(policy="homo", dim=3), True),
        (Model(policy="homo", dim=4, parameters={"ridge": 2.0}), False),
    ):
        console = Console(file=io.StringIO())
        compile_live(model, console)
        assert (LINE in console.file.getvalue()) == told  # type: ignore[attr-defined]


def test_an_unknown_policy_is_refused(command: Command) -> None:
    done = command("warm", "--policy", "nobody")
    assert done.returncode == 2
    assert "nobody" in done.stderr


@pytest.mark.slow
def test_after_it_nothing_is_compiled(tmp_path: Path) -> None:
    """Neither by a simulation nor by a live federation, from an empty cache."""

    def run(*words: str) -> str:
        line = [sys.executable, "-m", "fclub", *words]
        environment = os.environ | {"FCLUB_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
        return done.stderr

    def kept() -> set[Path]:
        return {*tmp_path.rglob("*.nbc")}

    told = [word for name in ("fclub-plus", "linucb", "random") for word in ("--policy", name)]
    assert LINE in run("warm", *told)
    before = kept()
    assert before
    simulated = run("run", "--policy", "fclub-plus", "--rounds", "3000", "--seeds", "1", "--jobs", "1")
    live = run("up", "--policy", "fclub-plus", "--servers", "2", "--users", "20", "--visits", "100")
    assert LINE not in simulated + live
    assert kept() == before
