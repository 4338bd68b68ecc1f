"""Where noise comes from. A mechanism never invents a seed: it is given one of these."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, Protocol

import numpy as np

from fclub.core.lattice import STEP, Whole
from fclub.core.types import Floats, Matrix
from fclub.errors import PrivacyError
from fclub.privacy.library import command, library

LARGEST = 2.0**52
"""Beyond this deviation a draw could leave 64 bits, where sampling saturates."""


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
