"""Results in a folder: one file per task, an append-only index, the experiment itself.

A result file holds nothing but what its task decides, so that the same task always writes the same
bytes; times are in the index. A result counts once its line is in the index, which is written after
the file is in place: whatever a crash leaves behind is either whole or done again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fclub import __version__
from fclub.errors import InvalidFile, InvalidSetting
from fclub.experiments.run.experiment import Experiment, Task
from fclub.paths import write_atomically
from fclub.simulation.trace import Trace

INDEX, EXPERIMENT = "index.jsonl", "experiment.json"


class IndexEntry(msgspec.Struct, frozen=True):
    """A line of the index; `version` is that of the fclub which made the file."""

    file: str
    sha256: str
    microseconds_per_round: float
    version: str = ""


class Results:
    """The folder of one experiment."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._entries = self._read_index()

    @classmethod
    def create(cls, folder: str | Path, experiment: Experiment, resume: bool = False) -> Results:
        """Start a folder, or go on with one if `resume` allows it."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        results = cls(path)
        if results._entries and not resume:
            raise InvalidSetting(
                f"{path} already holds results; resume, or choose another folder", path
            )
        for unfinished in path.glob(".*.npz.*"):  # what a crash in the middle of a file left behind
            unfinished.unlink()
        with write_atomically(path / EXPERIMENT) as file:
            file.write(msgspec.json.format(msgspec.json.encode(experiment)) + b"\n")
        return results

    def experiment(self) -> Experiment:
        """The experiment that was last run into this folder."""
        path = self.folder / EXPERIMENT
        try:
            return msgspec.json.decode(path.read_bytes(), type=Experiment)
        except FileNotFoundError:
            raise InvalidFile(f"{self.folder} holds no experiment") from None
        except msgspec.DecodeError as error:
            raise InvalidFile(f"{path} is not an experiment: {error}") from None

    def _read_index(self) -> dict[str, IndexEntry]:
        path = self.folder / INDEX
        if not path.exists():
            return {}
        lines = path.read_bytes().split(b"\n")
        whole, torn = lines[:-1], lines[-1]
        try:
            entries = [msgspec.json.decode(line, type=IndexEntry) for line in whole if line]
        except msgspec.DecodeError as error:
            raise InvalidFile(f"{path} is not an index of results: {error}") from None
        if torn:  # a crash in the middle of a line: that result is done again
            os.truncate(path, path.stat().st_size - len(torn))
        return {entry.file: entry for entry in entries}

    def __contains__(self, task: Task) -> bool:
        entry = self._entries.get(task.file)
        path = self.folder / task.file
        if entry is None or entry.version != __version__ or not path.exists():
            return False
        return _digest(path) == entry.sha256

    def versions(self, tasks: Iterable[Task]) -> str:
        """Which versions of fclub made these results; several only while a newer one is resuming."""
        entries = [self._entries[task.file] for task in tasks if task.file in self._entries]
        return ", ".join(sorted({entry.version for entry in entries}))

    def missing(self, tasks: Iterable[Task]) -> list[Task]:
        return [task for task in tasks if task not in self]

    def add(self, task: Task, trace: Trace) -> None:
        """Write the file, then its line."""
        path = self.folder / task.file
        trace.save(path)
        entry = IndexEntry(task.file, _digest(path), trace.microseconds_per_round, __version__)
        with (self.folder / INDEX).open("ab") as index:
            index.write(msgspec.json.encode(entry) + b"\n")
            index.flush()
            os.fsync(index.fileno())
        self._entries[task.file] = entry

    def load(self, task: Task) -> Trace:
        """The trace of a finished task, with the time it took."""
        if task.file not in self._entries:
            raise InvalidFile(f"{self.folder} has no result of {task.label} with seed {task.seed}")
        trace = Trace.load(self.folder / task.file)
        trace.microseconds_per_round = self._entries[task.file].microseconds_per_round
        return trace


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
