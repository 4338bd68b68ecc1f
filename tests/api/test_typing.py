"""`mypy --strict` sees the types of the public API, and finds what is wrong in a use of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
USE = Path(__file__).with_name("typed_use.py")

MISUSE = """\
import fclub

fclub.simulate("linucb", "synthetic", rounds="many")  # wrong
fclub.make_policy(3)  # wrong
trace = fclub.simulate("linucb", "synthetic", rounds=10)
trace.regrets  # wrong
fclub.Polcy  # wrong
fclub.Client("http://localhost")  # wrong
fclub.make_policy("linucb").theta  # wrong
fclub.LinUCB(ridge="much")  # wrong
fclub.FclubPlus(epsilon=1.0)  # wrong
fclub.CdpFclubPlus(level="all")  # wrong
fclub.CdpFclubPlus(epsilon=1.0, delta=1e-5, level="transcript")
"""


def check_types(*arguments: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """By mypy without the project's own settings, as a user runs it."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", *map(str, arguments)]
    environment = os.environ | ({} if path is None else {"MYPYPATH": str(path)})
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )


def test_types_are_seen(tmp_path: Path) -> None:
    """No fault in the file that uses the API, and each of the faults in the other."""
    misuse = tmp_path / "misuse.py"
    misuse.write_text(MISUSE)
    options = ("--follow-imports=silent", "--cache-dir=.mypy_cache/users")
    done = check_types(*options, USE, misuse, path=ROOT / "src")
    found = re.findall(r"(\w+)\.py:(\d+): error", done.stdout)
    wrong = [n for n, line in enumerate(MISUSE.splitlines(), 1) if line.endswith("# wrong")]
    assert found == [("misuse", str(n)) for n in wrong], done.stdout
