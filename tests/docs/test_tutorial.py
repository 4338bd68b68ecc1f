"""The tutorial is run from top to bottom, as a reader would."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.DOTALL)


def run_shell(line: str) -> None:
    """`fclub ...` by this interpreter; installing is left to whoever runs the tests."""
    program, *arguments = shlex.split(line)
    assert program in ("fclub", "pip")
    if program == "fclub":
        command = [sys.executable, "-m", "fclub", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, str(TUTORIAL), "exec"), namespace)
        else:
            for line in text.splitlines():
                run_shell(line)
    for page in ("out/demo/report.html", "out/mine/report.html"):
        assert (tmp_path / page).exists()


def test_own_policy_and_environment_are_under_30_lines() -> None:
    lengths = {
        node.name: node.end_lineno - node.lineno + 1
        for language, text in BLOCKS
        if language == "python"
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None
    }
    assert set(lengths) == {"Greedy", "Shelf"}
    assert max(lengths.values()) < 30
