"""Shells complete commands and options, and learn it from `--install-completion`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def fclub(*arguments: str, **variables: str) -> str:
    command = [sys.executable, "-m", "fclub", *arguments]
    environment = os.environ | variables
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fclub re", ["reproduce", "report", "replay"]),
        ("fclub run --pol", ["--policy"]),
        ("fclub run --policy sc", ["sclub"]),
        ("fclub run --env li", ["liked"]),
        ("fclub privacy --de", ["--delta"]),
    ],
)
def test_a_line_is_completed(line: str, expected: list[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert fclub(_FCLUB_COMPLETE="complete_bash", **words).split() == expected


def test_a_shell_is_taught(tmp_path: Path) -> None:
    fclub(
        "--install-completion",
        "bash",
        HOME=str(tmp_path),
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
    )
    taught = [path.name for path in tmp_path.rglob("*") if "_FCLUB_COMPLETE" in _text(path)]
    assert taught == ["fclub.sh"]


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
