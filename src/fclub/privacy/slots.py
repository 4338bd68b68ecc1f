"""Releases of whole users in slots: one vector per user, in whole lattice steps, and fresh noise.

In each of R slots every user adds a vector of norm at most N lattice steps, and noise of deviation σ
is added to the sum, so that R slots cost √R·N/σ. docs/specification/integers.md has the proof and what
δ owes to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from fclub.core.types import Counts
from fclub.privacy.calibration import LARGEST_EPSILON, mu_within
from fclub.privacy.mechanisms import Slots
from fclub.privacy.noise import NoiseSource

FINENESS = 2.0**20
"""Lattice steps in the deviation of one release at μ=1.

Bounds are then below 2³⁰ steps for every ε, and the squares of as many are far from 64 bits.
"""


@dataclass(frozen=True)
class SlotPlan:
    """`releases` slots that cost `mu` together for a user whose data are withdrawn.

    One user adds at most `steps` lattice steps to a slot, and the noise of each of its `entries` has so
    many steps as its `deviation`.
    """

    mu: float
    releases: int
    steps: int
    entries: int

    @property
    def deviation(self) -> float:
        return self.steps * sqrt(self.releases) / self.mu

    @property
    def mechanism(self) -> Slots:
        """What the ledger accounts for, in units of the largest contribution."""
        return Slots(self.releases, self.deviation / self.steps, self.entries, 1.0 / self.steps)


def plan_slots(epsilon: float, delta: float, entries: int, releases: int) -> SlotPlan:
    """Noise with which `releases` slots of so many `entries` together are (ε, δ)-private.

    Discrete and rounded Gaussians differ by a total variation of at most 1/(48s²) in an entry, s being
    lattice steps in a deviation; what that adds to the cost is taken off the budget first.
    """
    epsilon = min(epsilon, LARGEST_EPSILON)
    mu = mu_within(epsilon, delta, entries * releases / (48.0 * FINENESS**2))
    return SlotPlan(mu, releases, ceil(FINENESS * mu / sqrt(releases)), entries)


def draw_whole(source: NoiseSource, entries: int, deviation: float) -> Counts:
    """Noise in whole lattice steps."""
    return source.integers(np.full(entries, deviation))
