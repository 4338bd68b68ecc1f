"""How many rounds have been played, while workers are still playing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import numpy as np

from fclub.core.types import Counts
from fclub.simulation.loop import Progress

INTERVAL = 0.2
"""Seconds between two looks at the counter."""


@dataclass(frozen=True)
class RoundCounter:
    """One number per task in a file that workers on this machine map into memory.

    A worker on another machine does not find the file: its tasks then count when they are finished.
    """

    path: str
    tasks: int

    @staticmethod
    def create(folder: Path, tasks: int) -> RoundCounter:
        counter = RoundCounter(str(folder / "rounds"), tasks)
        np.memmap(counter.path, dtype=np.int64, mode="w+", shape=(max(1, tasks),)).flush()
        return counter

    def _open(self) -> Counts | None:
        try:
            return np.memmap(self.path, dtype=np.int64, mode="r+", shape=(max(1, self.tasks),))
        except OSError:
            return None

    @contextmanager
    def slot(self, position: int) -> Iterator[Progress | None]:
        """A callback for the rounds of one task; the last word has `finish`."""
        rounds = self._open()
        if rounds is None:
            yield None
            return

        def count(played: int) -> None:
            rounds[position] += played

        yield count

    def finish(self, position: int, rounds: int) -> None:
        counts = self._open()
        if counts is not None:
            counts[position] = rounds

    def total(self) -> int:
        counts = self._open()
        return 0 if counts is None else int(counts.sum())


@contextmanager
def watching(counter: RoundCounter, report: Callable[[int], None]) -> Iterator[None]:
    """Report the total from time to time from a thread, and once more at the end."""
    done = Event()

    def watch() -> None:
        while not done.wait(INTERVAL):
            report(counter.total())

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        report(counter.total())
