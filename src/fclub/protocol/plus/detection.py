"""A detection of a server of clusters: found from a copy of what it knows, and applied later."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fclub.core.clustering import number_by_first
from fclub.core.packing import flatten, rebuild
from fclub.core.plus.evidence import Noise
from fclub.core.plus.items import Items
from fclub.core.plus.mixture import SLOTS, concentration, make_slots, sample_partitions
from fclub.core.plus.population import Population
from fclub.core.plus.variance import learn_variance
from fclub.core.statistics import Packed
from fclub.core.types import Floats, Indices
from fclub.privacy.sensitivity import Domain
from fclub.protocol.plus.outside import Outside
from fclub.protocol.plus.releases import variances_by_entry
from fclub.protocol.plus.rules import PlusRules
from fclub.protocol.seam import State

EFFORT = 40_000
"""User visits per detection: fewer sweeps where there are many users."""
CROWD = 24.0
"""Users from whom a server learns what all have in common: fewer teach it less than it expects."""


class Basis(NamedTuple):
    """What a detection starts from. Nothing of it may change any more: the sampler writes into it."""

    users: Packed
    squares: Floats
    labels: Indices
    population: Population
    variance: float
    alpha: float
    outside: Outside
    rng: np.random.Generator


class Found(NamedTuple):
    """What a detection has found for the users of its basis, and the statistics that it knew.

    Every user's Gaussian as in `MixtureRound`, its cluster, and observations and clusters of others
    that it is served with; what all have in common; the state that the generator is left in.
    """

    users: Packed
    theta: Floats
    covariance: Floats
    vector: Floats
    labels: Indices
    joined: Indices
    population: Population
    variance: float
    alpha: float
    rng: dict[str, Any]

    def since(self, users: Packed) -> tuple[Indices, Packed]:
        """Who knows something else by now, and by how much: observations, and rewards replaced."""
        count = len(self.labels)
        moved = (users.moment[:count] != self.users.moment).any(axis=1)
        rows = np.flatnonzero(moved | (users.counts[:count] != self.users.counts))
        now, then = (Packed(p.gram[rows], p.moment[rows], p.counts[rows]) for p in (users, self.users))
        apart = now.gram - then.gram, now.moment - then.moment, now.counts - then.counts
        return rows, Packed(*apart)


def find(basis: Basis, rules: PlusRules, domain: Domain) -> Found:
    """Infer who shares a vector with whom, and what serves each user from now on."""
    users, population, outside = basis.users, basis.population, basis.outside
    told = population, basis.variance, rules.variance
    variance = learn_variance(users, basis.squares, *told)
    (count, dim), own = users.moment.shape, min(len(basis.labels), SLOTS)
    items = Items.of(users.gram / variance, users.moment / variance, np.ones(count))
    noise = Noise(variances_by_entry(domain, dim), population.sizes)
    known, exact = outside.items(variance, noise), outside.exact
    slots = make_slots(outside.masses, exact, dim, own, basis.alpha, outside.gamma)
    labels, best = np.minimum(number_by_first(basis.labels), own - 1), basis.labels.copy()
    mean, covariance = np.empty((count, dim)), np.empty((count, dim, dim))
    sweeps = int(np.clip(EFFORT // count, 4, rules.sweeps))
    learn = count + float(known.people[exact].sum()) >= CROWD
    state, out = (slots, items, known, population, labels), (mean, covariance, best)
    clusters = sample_partitions(*state, sweeps, sweeps // 4, learn, basis.rng, *out)
    return Found(
        users=users,
        theta=mean,
        covariance=covariance,
        vector=np.asarray(np.linalg.solve(covariance, mean[..., None])[..., 0]),
        labels=best,
        joined=np.array([(0, 0)] * own + outside.shares)[best],
        population=population,
        variance=variance,
        alpha=sqrt(basis.alpha * concentration(clusters, count)),
        rng=dict(basis.rng.bit_generator.state),
    )


@dataclass
class Detection:
    """A detection under way: first rows are released in order; `following` is the one to go on with.

    Then it has `found` something, which is applied.
    """

    found: Found | None = None
    following: int | None = None

    def state(self) -> State:
        values: dict[str, Any] = {"following": self.following, "found": None}
        if self.found is None:
            return {}, values
        values["found"] = [self.found.variance, self.found.alpha, self.found.rng]
        return flatten(self.found, "found."), values

    @staticmethod
    def restored(arrays: dict[str, Any], values: dict[str, Any], population: Population) -> Detection:
        """What `state` gave; `population` is one of the same shape."""
        if values["found"] is None:
            return Detection(following=values["following"])
        empty = Packed.zeros(0, len(population.mean))
        gaussians, whole = (empty.moment, empty.gram, empty.moment), np.zeros((0, 2), dtype=np.int64)
        like = Found(empty, *gaussians, empty.counts, whole, population, *values["found"])
        return Detection(rebuild(like, arrays, "found."), values["following"])
