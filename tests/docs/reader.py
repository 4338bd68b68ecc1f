"""A reader who copies and pastes: one folder, one shell and one Python for all blocks of a page."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from sys import version_info
from typing import Self

from tests.docs.pages import ROOT, Block

OWN = ("fclub", "_fclub", "__editable__", "_editable_impl")
"""How the files begin that a development install of fclub leaves among the others."""

PATIENCE = 300.0
"""Seconds for a block; the first use of a kernel compiles it."""

STOP_SECONDS = 30.0

SHELL = 'set -eu; while IFS= read -r -d "" block; do eval "$block" </dev/null 3>&-; echo done >&3; done'
PYTHON = """
import json, os, sys
scope = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "block", "exec"), scope)
    os.write(3, b"done\\n")
"""
COMMANDS = {"sh": ["bash", "-c", SHELL], "python": ["python", "-c", PYTHON]}


def build_wheel(folder: Path) -> None:
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), *options, "-w", str(folder)]
    subprocess.run(command, check=True)


def fresh_environment(folder: Path) -> Path:
    """A virtual environment with everything that is installed here except fclub; its programs."""
    venv.create(folder, with_pip=True)
    target = folder / "lib" / f"python{version_info.major}.{version_info.minor}" / "site-packages"
    for source in map(Path, sys.path):
        if source.name == "site-packages":
            _link_all(source, target)
    _link_all(Path(sys.prefix) / "bin", folder / "bin")
    return folder / "bin"


def _link_all(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        if not entry.name.startswith(OWN) and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)


class Reader:
    """`with Reader(folder, environment) as reader: reader.follow(block)`; a failed block raises.

    Words in `within` come before the commands of shell and Python.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], within: Sequence[str] = ()
    ) -> None:
        self.folder, self.environment, self.within = folder, dict(environment), within
        self._programs: dict[str, tuple[subprocess.Popen[bytes], int]] = {}

    def __enter__(self) -> Self:
        return self

    def program(self, language: str) -> tuple[subprocess.Popen[bytes], int]:
        """The first block of a language starts it."""
        if language not in self._programs:
            done, tell = os.pipe()
            command = [*self.within, *COMMANDS[language]]
            self._programs[language] = (self._start(command, tell), done)
            os.close(tell)
        return self._programs[language]

    def _start(self, command: list[str], tell: int) -> subprocess.Popen[bytes]:
        """Its file 3 is where it tells that a block is done; the rest of its output is kept."""
        with (self.folder / "output.txt").open("ab") as output:
            return subprocess.Popen(
                ["bash", "-c", f'exec 3>&{tell} {tell}>&-; exec "$@"', "bash", *command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[tell],
                start_new_session=True,
            )

    def follow(self, block: Block) -> None:
        program, done = self.program(block.language)
        text = block.text + "\0" if block.language == "sh" else json.dumps(block.text) + "\n"
        assert program.stdin is not None
        program.stdin.write(text.encode())
        program.stdin.flush()
        ready, _, _ = select.select([done], [], [], PATIENCE)
        if not ready or os.read(done, 5) != b"done\n":
            raise AssertionError(f"{block.text}\n\n{self.output}")

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")

    def __exit__(self, *_: object) -> None:
        for program, done in self._programs.values():
            assert program.stdin is not None
            program.stdin.close()
            os.close(done)
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGTERM)
            try:
                program.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
