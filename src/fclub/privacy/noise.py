"""Where noise comes from. A mechanism never invents a seed: it is given one of these."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fclub.core.types import Matrix


class NoiseSource(Protocol):
    """Independent standard normal numbers."""

    def gaussian(self, side: int) -> Matrix:
        """A fresh side × side matrix."""


class NoNoise:
    """For policies that send exact statistics: nothing is ever drawn."""

    def gaussian(self, side: int) -> Matrix:
        return np.zeros((0, 0))


class SeededNoise:
    """Reproducible noise for simulation. Who knows the seed can remove it: never deploy this."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def gaussian(self, side: int) -> Matrix:
        return self.rng.standard_normal((side, side))
