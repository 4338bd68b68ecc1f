"""Releases of observations by type: everything again in every slot, with the labels of that time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from fclub.core.lattice import PARTS, STEP, Whole, whole
from fclub.core.plus.type_noise import ALL
from fclub.core.statistics import Packed
from fclub.core.types import Floats
from fclub.privacy.calibration import mu_of, mu_within
from fclub.privacy.ledger import Ledger, Stream
from fclub.privacy.mechanisms import Slots
from fclub.privacy.noise import NoiseSource
from fclub.privacy.sensitivity import (
    Domain,
    noised_places,
    released_entries,
    released_std,
    sensitivity,
)


@dataclass(frozen=True)
class EventPlan:
    """Slots for statistics by type; slot r is due once users have made `visits[r]` visits on average.

    A user's probabilities of the types are given, as the paper's partition is. One observation is then
    in the types' sums with weights whose squares add up to at most 1, and in that of all users with
    the weight `ALL`.
    """

    domain: Domain
    dim: int
    mu: float
    mechanism: Slots
    first: float
    growth: float

    @property
    def sensitivity(self) -> float:
        return _distance(self.domain, self.dim)

    @cached_property
    def visits(self) -> list[float]:
        return [self.first * self.growth**slot for slot in range(self.mechanism.releases)]

    @property
    def noise(self) -> float:
        """The stated variance of a release."""
        return self.mechanism.std**2

    @property
    def deviations(self) -> Floats:
        """Of each entry of a type's sums, in parts of lattice steps."""
        return released_std(self.domain, self.dim, self.mechanism.std) / (STEP / PARTS)


def _distance(domain: Domain, dim: int) -> float:
    return sqrt(1.0 + ALL**2) * sensitivity(domain, dim)


def plan_events(
    epsilon: float, delta: float, domain: Domain, dim: int, releases: int, first: float, growth: float
) -> EventPlan:
    """Noise with which all slots together are (ε, δ)-private for one observation."""
    distance, entries = _distance(domain, dim), 2 * len(noised_places(domain, dim)[0])

    def slots(mu: float) -> Slots:
        return Slots(releases, distance * sqrt(releases) / mu, entries, STEP / PARTS)

    mu = mu_within(epsilon, delta, slots(mu_of(epsilon, delta)).distance(releases))
    return EventPlan(domain, dim, mu, slots(mu), first, growth)


class EventReleases:
    """Keeps to the slots; a release is entered in the ledger before its noise is drawn."""

    def __init__(self, plan: EventPlan, source: NoiseSource, ledger: Ledger, name: str) -> None:
        self.plan, self.source, self.ledger, self.stream = plan, source, ledger, f"{name}/types"
        self.following = self.covered = 0

    def due(self, visits: int, users: int) -> bool:
        """Is it time for the next slot, and does the budget allow it?"""
        schedule = self.plan.visits
        if self.following == len(schedule) or visits < schedule[self.following] * users:
            return False
        known = self.ledger.is_open(self.stream)
        return known or self.ledger.admits(self.plan.mechanism, self.plan.sensitivity)

    def release(self, users: Packed, weights: Floats) -> Whole:
        """Noised sums by type and of all users, in parts of lattice steps."""
        visits = int(users.counts.sum())
        if not self.ledger.is_open(self.stream):
            self.ledger.open(self.stream, self.plan.mechanism, self.plan.sensitivity)
        self.ledger.release(self.stream, max(visits - self.covered, 0))
        self.following, self.covered = self.following + 1, visits
        entries = whole(released_entries(users.gram, users.moment))
        parts = np.vstack([np.floor(weights.T * PARTS), np.full(len(weights), ALL * PARTS)])
        total: Whole = parts.astype(np.int64) @ entries
        deviations = np.tile(self.plan.deviations, len(total))
        return total + self.source.integers(deviations).reshape(total.shape)

    def streams(self) -> dict[str, Stream]:
        return {k: v for k, v in self.ledger.streams.items() if k == self.stream}
