"""Releases of whole users: slots that are fixed in advance, each with its bound and its noise.

In slot r a server adds up one vector for each of its users, of norm at most C_r, written in whole
lattice steps, and noise of deviation σ_r. C_r/σ_r is the same in all slots, so that R of them cost
√R·C/σ. docs/privacy.md has the proof and what δ owes to rounding.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, sqrt

import numpy as np

from fclub.config import require
from fclub.core.types import Counts
from fclub.privacy.calibration import mu_of
from fclub.privacy.mechanisms import Slots
from fclub.privacy.noise import NoiseSource

FINEST, COARSEST = 2.0**26, 2.0**20
"""Lattice steps in a deviation: at least the second, at most the first where a large ε needs it.

Bounds are then below 2³⁰ lattice steps for every ε that the finest lattice allows, and the squares of
as many steps are far from 64 bits.
"""

DAY = 86_400.0

GROWTH = 0.6
"""Bounds grow as this power of the visits: a user's contribution grows more slowly than its data."""


@dataclass(frozen=True)
class SlotPlan:
    """`releases` slots over a period; slot r is due once users have made `visits[r]` visits on average.

    `mu` is what all of them cost together for a user whose data are withdrawn. One user adds at most
    `steps` lattice steps to a slot, and the noise of each of its `entries` has so many steps as its
    `deviation`. A period lasts `days`; with 0 there is one for ever.
    """

    mu: float
    releases: int
    first: float
    growth: float
    contribution: float
    steps: int
    entries: int
    days: float = 0.0

    def period(self, now: float) -> int:
        """The number of the period at this time, in seconds since 1970."""
        return int(now // (DAY * self.days)) if self.days > 0.0 else 0

    @property
    def deviation(self) -> float:
        return self.steps * sqrt(self.releases) / self.mu

    @property
    def mechanism(self) -> Slots:
        """What the ledger accounts for, in units of the largest contribution."""
        return Slots(self.releases, self.deviation / self.steps, self.entries, 1.0 / self.steps)

    @cached_property
    def visits(self) -> list[float]:
        return [self.first * self.growth**slot for slot in range(self.releases)]

    def most(self, slot: int) -> float:
        """C_r."""
        return self.contribution * float(self.visits[slot] ** GROWTH)

    def step(self, slot: int) -> float:
        """g_r, of which C_r is a whole multiple."""
        return self.most(slot) / self.steps

    def noise(self, slot: int) -> float:
        """σ_r."""
        return self.deviation * self.step(slot)

    def due(self, following: int, visits: int, users: int) -> int | None:
        """The slot to use now if `following` is the first that was not used, or None.

        Of several slots that are due all but the last two are left out. This looks at public numbers
        only.
        """
        reached = bisect_right(self.visits, visits / max(users, 1)) - 1
        return max(following, reached - 1) if reached >= following else None


def plan_slots(
    epsilon: float,
    delta: float,
    entries: int,
    contribution: float = 0.5,
    releases: int = 24,
    first: float = 2.0,
    growth: float = 1.12,
    days: float = 0.0,
) -> SlotPlan:
    """Noise with which `releases` slots of so many `entries` together are (ε, δ)-private.

    Discrete and rounded Gaussians differ by a total variation of at most 1/(48s²) in an entry, s being
    lattice steps in a deviation; what that adds to δ is taken off δ first.
    """
    require(contribution > 0.0, "contribution must be above 0", contribution)
    fineness = COARSEST
    while fineness < FINEST and _rounding(epsilon, entries * releases, fineness) > 1e-3 * delta:
        fineness *= 2.0
    rounding = _rounding(epsilon, entries * releases, fineness)
    require(rounding < delta, f"delta must be above {rounding:.3g} for this epsilon", delta)
    mu = mu_of(epsilon, delta - rounding)
    steps = ceil(fineness * mu / sqrt(releases))
    return SlotPlan(mu, releases, first, growth, contribution, steps, entries, days)


def _rounding(epsilon: float, draws: int, fineness: float) -> float:
    """(1 + e^ε) times the total variation of all draws."""
    return (1.0 + exp(min(epsilon, 700.0))) * draws / (48.0 * fineness**2)


def draw_whole(source: NoiseSource, entries: int, deviation: float) -> Counts:
    """Noise in whole lattice steps."""
    return source.integers(np.full(entries, deviation))
