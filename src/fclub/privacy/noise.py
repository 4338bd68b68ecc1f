"""Where noise comes from. A mechanism never invents a seed: it is given one of these."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from math import isqrt, sqrt
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Protocol

import numpy as np

from fclub.core.lattice import STEP, Whole
from fclub.core.types import Floats, Matrix
from fclub.errors import ExtraMissing, NoiseFailed, PrivacyError

LARGEST = 2.0**52
"""Beyond this deviation a draw could leave 64 bits, where sampling saturates."""

PROGRAM = Path(__file__).with_name("drawing.py")

SECONDS = 30.0
"""A request that is not answered by then is given up. It takes milliseconds, after a start of half a
second."""


class NoiseSource(Protocol):
    """Independent whole numbers. The seed of a `seeded` source is enough to remove them."""

    @property
    def seeded(self) -> bool: ...

    def integers(self, deviations: Floats) -> Whole:
        """Fresh noise for every entry, with this deviation; 0 where the deviation is 0."""


class NoNoise:
    """For policies that send exact statistics: nothing is ever drawn."""

    seeded: ClassVar[bool] = False

    def integers(self, deviations: Floats) -> Whole:
        return np.zeros(np.shape(deviations), dtype=np.int64)


class SeededNoise:
    """Reproducible noise for simulation: normal doubles, rounded to whole numbers.

    With its seed anyone can remove it: never deploy this.
    """

    seeded: ClassVar[bool] = True

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def integers(self, deviations: Floats) -> Whole:
        """Draws for entries without deviation too, so that a seed's draws stay in place."""
        _check(deviations)
        return np.rint(deviations * self.rng.standard_normal(deviations.shape)).astype(np.int64)


def command() -> tuple[str, ...]:
    """How the program is started: with this interpreter, without its own folder among the modules."""
    return sys.executable, "-P", str(PROGRAM)


class Library:
    """OpenDP in another process (`drawing`), which is started when it is first asked.

    A process that ended is started again, once: it has given nothing. Everything else that goes wrong
    is a `NoiseFailed`, and nothing was drawn.
    """

    def __init__(self, started_by: Sequence[str], seconds: float = SECONDS) -> None:
        if find_spec("opendp") is None:
            raise ExtraMissing("exact noise", "service")
        self.started_by, self.seconds = [*started_by], seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._costs: dict[tuple[float, float], float] = {}
        _libraries.append(self)

    def draw(self, wanted: list[tuple[float, int]]) -> list[list[int]]:
        """For each scale so many whole numbers."""
        drawn = self._ask({"draw": wanted})
        fits = isinstance(drawn, list) and [len(part) for part in drawn] == [n for _, n in wanted]
        if not fits:
            raise NoiseFailed(f"expected draws for {wanted}, got {str(drawn)[:80]}")
        return drawn  # type: ignore[no-any-return]

    def cost(self, scale: float, distance: float) -> float:
        """ρ of zCDP: OpenDP's privacy map for one release at this scale; a policy has few of them."""
        if (scale, distance) not in self._costs:
            if len(self._costs) >= 256:
                self._costs.clear()
            self._costs[scale, distance] = float(self._ask({"map": [scale, distance]}))
        return self._costs[scale, distance]

    def _ask(self, request: dict[str, Any]) -> Any:
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            heard = self._exchange(line) or self._exchange(line)
        if heard is None:
            raise NoiseFailed("the process that runs OpenDP ends at once; nothing was released")
        found = json.loads(heard)
        if "answer" not in found:
            raise NoiseFailed(f"{found.get('error')}; nothing was released")
        return found["answer"]

    def _exchange(self, line: bytes) -> bytes | None:
        """One line there and one back; None if the process has ended."""
        process, deadline = self._running(), time.monotonic() + self.seconds
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            self.close()
            return None
        heard, out = b"", process.stdout.fileno()
        while not heard.endswith(b"\n"):
            ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise NoiseFailed(f"no noise within {self.seconds:g} s; nothing was released")
            some = os.read(out, 1 << 16)
            if not some:
                self.close()
                return None
            heard += some
        return heard

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self.started_by, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        return self._process

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def leave(self) -> None:
        """After a fork the process belongs to the parent: the child starts its own."""
        process, self._process, self._lock = self._process, None, Lock()
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            process.returncode = 0


_libraries: list[Library] = []


@lru_cache(maxsize=8)
def library(started_by: tuple[str, ...]) -> Library:
    """One process for all sources: between requests it knows nothing that a draw could follow from."""
    return Library(started_by)


@atexit.register
def _close_all() -> None:
    for one in _libraries:
        one.close()


def _leave_all() -> None:
    for one in _libraries:
        one.leave()


os.register_at_fork(after_in_child=_leave_all)


class DiscreteNoise:
    """The discrete Gaussian, sampled exactly by OpenDP.

    Its probabilities are proportional to exp(−k²/2s²) on the whole numbers k, s being the deviation;
    no double is involved in drawing. Each call is served by a process that is forked for it and takes
    its entropy from the operating system then: two copies of one memory do not draw alike.
    """

    seeded: ClassVar[bool] = False

    def __init__(self, started_by: tuple[str, ...] | None = None) -> None:
        self._library = library(command() if started_by is None else started_by)

    def integers(self, deviations: Floats) -> Whole:
        _check(deviations)
        drawn = np.zeros(np.shape(deviations), dtype=np.int64)
        scales, counts = np.unique(deviations[deviations > 0.0], return_counts=True)
        if len(scales):
            wanted = list(zip(scales.tolist(), counts.tolist(), strict=True))
            for scale, numbers in zip(scales, self._library.draw(wanted), strict=True):
                drawn[deviations == scale] = numbers
        return drawn

    def cost(self, scale: float, distance: float) -> float:
        """What OpenDP's own privacy map says of one release: ρ of zCDP, for data `distance` apart."""
        return self._library.cost(scale, distance)


def _check(deviations: Floats) -> None:
    if not np.all((deviations >= 0.0) & (deviations <= LARGEST)):
        raise PrivacyError("noise without a deviation that 64 bits can hold")


def least_whole(deviation: int, shares: int) -> int:
    """Deviation of one of so many shares of noise: the least whole s with s²·shares ≥ deviation²."""
    square = -(-(deviation**2) // shares)
    root = isqrt(square)
    return root if root**2 == square else root + 1


def symmetric(source: NoiseSource, deviations: Matrix) -> Matrix:
    """Noise for a symmetric matrix, in multiples of `STEP`: the upper triangle is drawn and mirrored.

    The diagonal has √2 times its deviation. It is drawn with that: the sum of two discrete Gaussians
    is none.
    """
    rows, columns = np.triu_indices(len(deviations))
    scale = np.where(rows == columns, sqrt(2.0), 1.0) / STEP
    noise = np.empty_like(deviations)
    noise[rows, columns] = source.integers(deviations[rows, columns] * scale) * STEP
    noise[columns, rows] = noise[rows, columns]
    return noise


def require_exact(source: NoiseSource) -> None:
    """A deployment that promises privacy calls this before it starts: it takes no other source."""
    if not isinstance(source, DiscreteNoise):
        raise PrivacyError("a deployment draws exact noise from the operating system, and no other")
