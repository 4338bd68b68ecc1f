"""Where noise comes from. A mechanism never invents a seed: it is given one of these."""

from __future__ import annotations

import os
from math import sqrt
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import ndtri

from fclub.core.types import Matrix
from fclub.errors import PrivacyError
from fclub.extras import need


class NoiseSource(Protocol):
    """Independent standard normal numbers. The seed of a `seeded` source is enough to remove them."""

    @property
    def seeded(self) -> bool: ...

    def gaussian(self, side: int) -> Matrix:
        """A fresh side × side matrix."""


class NoNoise:
    """For policies that send exact statistics: nothing is ever drawn."""

    seeded: ClassVar[bool] = False

    def gaussian(self, side: int) -> Matrix:
        return np.zeros((0, 0))


class SeededNoise:
    """Reproducible noise for simulation. With its seed anyone can remove it: never deploy this."""

    seeded: ClassVar[bool] = True

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def gaussian(self, side: int) -> Matrix:
        return self.rng.standard_normal((side, side))


class SecureNoise:
    """Normal numbers from the operating system's entropy, which no one can replay.

    Every number is the sum of four independent ones over 2, each the inverse distribution function at
    the midpoint of one of 2⁵² equal cells. Doubles are not the reals: the set of sums a double can
    take depends slightly on the data, and attacks on single samples exploit that. Four summands make
    the inversion they rely on infeasible in practice; it is a mitigation, not a proof.
    """

    seeded: ClassVar[bool] = False
    summands: ClassVar[int] = 4

    def gaussian(self, side: int) -> Matrix:
        size = self.summands * side * side
        cells = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(12)
        normal: Matrix = ndtri((cells + 0.5) * 2.0**-52)
        total: Matrix = normal.reshape(self.summands, side, side).sum(axis=0)
        return total / sqrt(self.summands)


class DiscreteNoise:
    """Discrete Gaussian on a grid of 2⁻²⁰, sampled exactly by OpenDP (extra `opendp`).

    No double is involved in drawing, so sampling itself cannot betray anything. Scaling the draw and
    adding it to statistics is still done in doubles, as with `SecureNoise`.
    """

    seeded: ClassVar[bool] = False
    steps: ClassVar[float] = 2.0**20

    def __init__(self) -> None:
        dp = need("opendp.prelude", "discrete noise", "opendp")
        dp.enable_features("contrib")
        domain, metric = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
        self._draw: Any = dp.m.make_gaussian(domain, metric, scale=self.steps)

    def gaussian(self, side: int) -> Matrix:
        whole = self._draw([0] * (side * side))
        return np.array(whole, dtype=np.float64).reshape(side, side) / self.steps


def require_secure(source: NoiseSource) -> None:
    """A deployment that promises privacy calls this before it starts."""
    if source.seeded:
        raise PrivacyError("a deployment cannot draw its noise from a seed; use secure noise")
    if isinstance(source, NoNoise):
        raise PrivacyError("a deployment that promises privacy cannot run without noise")
