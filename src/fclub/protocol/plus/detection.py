"""A detection of a server of clusters: found from a copy of what it knows, and applied later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy, deepcopy
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
from fclub.core.plus.rounds import MixtureRound, condition
from fclub.core.plus.variance import learn_variance
from fclub.core.statistics import Packed
from fclub.core.types import Floats, Indices
from fclub.privacy.sensitivity import Domain, variances_by_entry
from fclub.protocol.exchanges.releases import Releases
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.outside import Outside
from fclub.protocol.plus.rules import PlusRules
from fclub.protocol.seam import State, nothing

EFFORT = 40_000
"""User visits per detection: fewer sweeps where there are many users."""
CROWD = 24.0
"""Users from whom a server learns what all have in common: fewer teach it less than it expects."""

RELEASES = 4
"""Users of whom one part releases what is due: exact noise for one takes a millisecond or two."""


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


class Detecting(ABC):
    """Detects at once, or beside serving: with `in_parts` whoever runs the server does part by part.

    What the sampler has found from a copy is conditioned on what users have observed since. If nothing
    happens in between parts give the same bits as all at once.
    """

    in_parts = False
    rules: PlusRules
    domain: Domain
    serving: MixtureRound
    population: Population
    variance: float
    alpha: float
    labels: Indices
    joined: Indices
    outside: Outside
    releases: Releases
    rng: np.random.Generator
    clock: GeometricClock | None
    paused: bool
    unsent: bool
    _detection: Detection | None

    @property
    @abstractmethod
    def users(self) -> Packed: ...

    @property
    @abstractmethod
    def observations(self) -> int: ...

    @abstractmethod
    def _report(self, phase: int) -> None:
        """Send the released sums of the clusters that have something new."""

    def _begin_phase(self) -> None:
        """With a clock of its own: detect, and ask for news."""
        assert self.clock is not None
        self.clock.advance(self.observations)
        if self.in_parts:
            self._detection = Detection(following=0)
            return
        self.detect()
        if not self.paused:
            self._report(self.clock.phase)

    def part(self) -> Callable[[], None]:
        """Release; copy what is known, from which the partition is found elsewhere; apply that, report.

        Releases come first, as they do where all is done at once: what they cover must not depend on
        how long the sampler takes, which raw data may decide.
        """
        work = self._detection
        assert work is not None
        if work.following is not None:
            self._release_some(work, work.following)
        elif work.found is not None:
            self._finish(work.found)
        else:
            basis, rules, domain = self._basis(), self.rules, self.domain

            def sample() -> None:
                work.found = find(basis, rules, domain)

            return sample
        return nothing

    def _release_some(self, work: Detection, start: int) -> None:
        """Who may not release any more keeps what it has for later."""
        before = int(self.releases.released.counts.sum())
        work.following = None if self.paused else self.releases.advance(start, RELEASES)
        self.unsent |= int(self.releases.released.counts.sum()) > before

    def _finish(self, found: Found) -> None:
        assert self.clock is not None
        self._detection = None
        self._apply(found)
        if not self.paused:
            self._report(self.clock.phase)

    def detect(self) -> None:
        """Infer who shares a vector with whom, and what serves each user from now on."""
        if not self.paused:
            self.releases.advance()
        self._apply(find(self._basis(), self.rules, self.domain))

    def _basis(self) -> Basis:
        """A copy; what others have told is replaced as a whole where it changes."""
        population = rebuild(self.population, deepcopy(flatten(self.population)))
        told = self.labels.copy(), population, self.variance, self.alpha, copy(self.outside)
        return Basis(self.users.copy(), self.serving.squares.copy(), *told, deepcopy(self.rng))

    def _apply(self, found: Found) -> None:
        """Users who have come meanwhile stay what they are, in the largest cluster."""
        serving, rows = self.serving, len(found.labels)
        self.population, self.alpha = found.population, found.alpha
        self.variance, self.rng.bit_generator.state = found.variance, found.rng
        serving.weight[:] = 1.0 / found.variance
        serving.theta[:rows], serving.covariance[:rows] = found.theta, found.covariance
        serving.vector[:rows] = found.vector
        condition(serving, *found.since(self.users))
        self.labels, self.joined = found.labels, found.joined
        self._count_with_most(len(self.users.counts) - rows)

    def _count_with_most(self, newcomers: int) -> None:
        """These come after all that have a label."""
        largest = np.bincount(self.labels, minlength=1).argmax()
        like = self.joined[self.labels == largest][:1]
        like = like if len(like) else np.zeros((1, 2), dtype=np.int64)
        self.labels = np.append(self.labels, np.full(newcomers, largest))
        self.joined = np.vstack([self.joined, np.repeat(like, newcomers, axis=0)])
