"""Noise that a log can replay: every draw is kept with the entry that caused it."""

from __future__ import annotations

import numpy as np

from fclub.core.types import Matrix
from fclub.errors import InvalidFile
from fclub.privacy.noise import NoiseSource, NoNoise


class RecordedNoise:
    """Draws from a source and remembers; during a replay it only gives back what was remembered.

    To draw again for the same data would be a second release of it.
    """

    def __init__(self, source: NoiseSource) -> None:
        self.source, self.seeded = source, source.seeded
        self._drawn: list[bytes] = []
        self._replayed: bytes | None = None

    def gaussian(self, side: int) -> Matrix:
        if isinstance(self.source, NoNoise):
            return self.source.gaussian(side)
        if self._replayed is not None:
            return self._again(side)
        matrix = self.source.gaussian(side)
        self._drawn.append(matrix.tobytes())
        return matrix

    def _again(self, side: int) -> Matrix:
        size = 8 * side * side
        data, self._replayed = self._replayed[:size], self._replayed[size:]  # type: ignore[index]
        if len(data) != size:
            raise InvalidFile("the log does not hold the noise that its entries have drawn")
        return np.frombuffer(data).reshape(side, side).copy()

    def take(self) -> bytes:
        """What was drawn since the last call."""
        drawn, self._drawn = b"".join(self._drawn), []
        return drawn

    def replay(self, noise: bytes | None) -> None:
        """Give these draws back; None ends the replay."""
        if self._replayed:
            raise InvalidFile("the log holds noise that no entry has drawn")
        self._replayed = noise
