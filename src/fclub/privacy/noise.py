"""Where noise comes from. A mechanism never invents a seed: it is given one of these."""

from __future__ import annotations

from math import sqrt
from typing import Any, ClassVar, Protocol

import numpy as np

from fclub.core.lattice import STEP, Whole
from fclub.core.types import Floats, Matrix
from fclub.errors import PrivacyError
from fclub.extras import need

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
    """The discrete Gaussian, sampled exactly by OpenDP from the operating system's entropy.

    Its probabilities are proportional to exp(−k²/2s²) on the whole numbers k, s being the deviation;
    no double is involved in drawing.
    """

    seeded: ClassVar[bool] = False

    def __init__(self) -> None:
        self._dp: Any = need("opendp.prelude", "exact noise", "service")
        self._dp.enable_features("contrib")
        # The default integer has 32 bits and saturates.
        self._space = (
            self._dp.vector_domain(self._dp.atom_domain(T="i64")),
            self._dp.l2_distance(T=float),
        )
        self._samplers: dict[float, Any] = {}

    def integers(self, deviations: Floats) -> Whole:
        _check(deviations)
        drawn = np.zeros(np.shape(deviations), dtype=np.int64)
        for scale in np.unique(deviations[deviations > 0.0]):
            places = deviations == scale
            drawn[places] = self._sampler(float(scale))([0] * int(np.count_nonzero(places)))
        return drawn

    def _sampler(self, scale: float) -> Any:
        """A policy has few deviations; one that invents new ones for ever must not fill the memory."""
        if len(self._samplers) >= 256:
            self._samplers.clear()
        if scale not in self._samplers:
            self._samplers[scale] = self._dp.m.make_gaussian(*self._space, scale=scale)
        return self._samplers[scale]


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
