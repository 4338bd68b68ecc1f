"""Mechanisms with correlated noise over the releases of one stream, and what a stream costs.

A stream releases the prefix sums of its increments. Its noise is L z: z_j independent symmetric
Gaussian matrices with the same standard deviation, L lower triangular. Seen through L⁻¹ a release is
a Gaussian mechanism with independent noise, so the cost after t releases is μ = c·Δ/σ, with c the
largest column norm of L⁻¹A over the first t rows and columns, A being the prefix-sum matrix.

Noise is discrete and encoded sums are rounded to the lattice: docs/privacy.md has what this adds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt
from typing import ClassVar, Protocol

import numpy as np

from fclub.config import require
from fclub.core.lattice import MOST_OBSERVATIONS, STEP, Whole
from fclub.core.types import Counts, Matrix, Vector
from fclub.errors import UnknownName
from fclub.privacy.calibration import mu_of, mu_within
from fclub.privacy.sensitivity import Domain, entry_std, noised_places, sensitivity

WEIGHT = 26
"""Weights of an encoder are whole multiples of 2⁻²⁶."""

LEAST_STEPS = 64.0
"""The least deviation of discrete noise, in steps, whose distance to rounded noise is proved."""


class Mechanism(Protocol):
    """Correlated noise for at most `releases` releases of `entries` numbers, base deviation `std`.

    Noise is a whole multiple of `step`.
    """

    @property
    def name(self) -> str: ...

    @property
    def releases(self) -> int: ...

    @property
    def std(self) -> float: ...

    @property
    def entries(self) -> int: ...

    @property
    def step(self) -> float: ...

    def factor(self, releases: int) -> Matrix:
        """L: the noise of the first prefixes as combinations of the independent draws."""

    def multiplier(self, releases: int) -> float:
        """c: the cost of a stream of `releases` releases, in units of one release of the same σ."""

    def charged(self, releases: int) -> float:
        """c that the ledger charges once `releases` releases have been made."""

    def cost(self, sensitivity: float, releases: int) -> float:
        """μ that the ledger charges for data of that sensitivity, with what rounding may add."""

    def distance(self, releases: int) -> float:
        """Total variation between the noise of these releases and a rounded Gaussian, at most."""


@dataclass(frozen=True)
class _Noise(ABC):
    """What all mechanisms have."""

    releases: int
    std: float
    entries: int = 1
    step: float = STEP

    rounds: ClassVar[bool] = False
    """Whether encoded sums are rounded, which may move each entry of each release by one step."""

    def paid(self, releases: int) -> int:
        """How many releases are paid for once `releases` have been made."""
        return self.releases

    @abstractmethod
    def multiplier(self, releases: int) -> float: ...

    def charged(self, releases: int) -> float:
        return self.multiplier(self.paid(releases))

    def cost(self, sensitivity: float, releases: int) -> float:
        rounding = self.step * sqrt(self.paid(releases) * self.entries) if self.rounds else 0.0
        return (sensitivity * self.charged(releases) + rounding) / self.std

    def drawn(self, releases: int) -> int:
        """How many of the draws of these releases are added to any one observation."""
        return releases

    def distance(self, releases: int) -> float:
        drawn = self.drawn(self.paid(releases)) * self.entries
        return drawn * (self.step / self.std) ** 2 / 48.0


@dataclass(frozen=True)
class Tree(_Noise):
    """The paper's binary tree (Alg. 5); paid as it grows.

    One node is drawn per leaf. The node drawn with leaf i covers the last 2^(trailing zeros of i)
    leaves; the prefix over t leaves is the sum of the nodes at t, t − lowbit(t), …
    """

    @property
    def name(self) -> str:
        return "tree"

    def factor(self, releases: int) -> Matrix:
        L = np.zeros((releases, releases))
        for leaves in range(1, releases + 1):
            node = leaves
            while node > 0:
                L[leaves - 1, node - 1] = 1.0
                node &= node - 1
        return L

    def multiplier(self, releases: int) -> float:
        """√(1 + ⌊log₂ t⌋): the first leaf is in one node of every height drawn so far."""
        return sqrt(releases.bit_length())

    def drawn(self, releases: int) -> int:
        return releases.bit_length()

    def paid(self, releases: int) -> int:
        return releases


@dataclass(frozen=True)
class WholeTree(Tree):
    """The same, paid when it starts: no release of a phase can then be too expensive."""

    @property
    def name(self) -> str:
        return "whole-tree"

    def paid(self, releases: int) -> int:
        return self.releases


@dataclass(frozen=True)
class Increments(_Noise):
    """Square-root factorization of the prefix sum; the whole stream is paid when it starts.

    Released are the whole numbers `encoder` @ increments + noise; `factor` @ releases are prefix sums.
    """

    rounds: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "increments"

    @property
    def encoder(self) -> Whole:
        """How increments enter each release, in multiples of 2⁻²⁶."""
        return _encoder(self.releases)

    def factor(self, releases: int) -> Matrix:
        return _decoder(self.releases)[:releases, :releases]

    def multiplier(self, releases: int) -> float:
        """The encoder is L⁻¹A."""
        return _longest(self.releases, releases)

    @property
    def variances(self) -> Vector:
        """`variances[t]` is the variance of an entry with deviation `std` after t releases."""
        rows = np.linalg.norm(_decoder(self.releases), axis=1)
        return np.concatenate([[0.0], (self.std * rows) ** 2])


@lru_cache(maxsize=32)
def _encoder(releases: int) -> Whole:
    """The square root of the prefix-sum matrix, Toeplitz with f₀ = 1, f_j = f_{j−1}(1 − 1/(2j)).

    These are the coefficients of (1−x)^(−1/2), whose square (1−x)^(−1) sums everything before.
    """
    f = np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / np.arange(1.0, releases)]))
    lag = np.subtract.outer(np.arange(releases), np.arange(releases))
    weights = np.where(lag >= 0, f[np.maximum(lag, 0)], 0.0)
    return np.rint(weights * 2.0**WEIGHT).astype(np.int64)


@lru_cache(maxsize=256)
def _longest(provision: int, releases: int) -> float:
    """The largest column norm of the first releases of an encoder."""
    weights = _encoder(provision)[:releases, :releases] * 2.0**-WEIGHT
    return float(np.linalg.norm(weights, axis=0).max())


@lru_cache(maxsize=32)
def _decoder(releases: int) -> Matrix:
    """What turns encoded increments into prefix sums."""
    weights = _encoder(releases) * 2.0**-WEIGHT
    return np.asarray(np.linalg.solve(weights.T, np.tri(releases).T).T)


@dataclass(frozen=True)
class Slots(_Noise):
    """Everything is released again in every slot, with fresh noise; paid slot by slot."""

    @property
    def name(self) -> str:
        return "slots"

    def factor(self, releases: int) -> Matrix:
        return np.eye(releases)

    def multiplier(self, releases: int) -> float:
        """√t: what was there at the first release is in all of them."""
        return sqrt(releases)

    def paid(self, releases: int) -> int:
        return releases


MECHANISMS: dict[str, type[Tree] | type[Increments] | type[Slots]] = {
    "tree": Tree,
    "whole-tree": WholeTree,
    "increments": Increments,
    "slots": Slots,
}
"""What a ledger can account for, by name."""


def calibrate(
    name: str, mu: float, sensitivity: float, releases: int, entries: int = 1
) -> Tree | Increments | Slots:
    """Noise with which a whole stream of data of that sensitivity costs exactly μ."""
    if name not in MECHANISMS:
        raise UnknownName("mechanism", name, MECHANISMS)
    require(mu > 0.0, "mu must be above 0", mu)
    require(releases >= 1, "releases must be at least 1", releases)
    kind = MECHANISMS[name]
    return kind(releases, kind(releases, 1.0, entries).cost(sensitivity, releases) / mu, entries)


def count_schedule(first: int, ratio: float, provision: int = MOST_OBSERVATIONS) -> Counts:
    """The observation counts at which a stream releases: geometric, up to exactly `provision`.

    Counts are public when neighbours differ in the value of one observation, so this leaks nothing.
    """
    inside = 1 <= first <= provision
    require(inside, f"the first release needs at least 1 observation, at most {provision}", first)
    require(ratio > 1.0, "the ratio between release counts must be above 1", ratio)
    counts = [first]
    while counts[-1] < provision:
        counts.append(min(provision, max(counts[-1] + 1, ceil(counts[-1] * ratio))))
    return np.array(counts, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Streams over a domain that each keep (ε, δ), whatever part of their schedule they use."""

    domain: Domain
    dim: int
    mu: float
    sensitivity: float
    mechanism: Mechanism
    schedule: Counts

    @property
    def entry_std(self) -> Matrix:
        """Deviation by entry, before the diagonal's √2."""
        return entry_std(self.domain, self.dim, self.mechanism.std)

    @property
    def distance(self) -> float:
        """Total variation between the noise of a whole stream and a rounded Gaussian, at most."""
        return self.mechanism.distance(len(self.schedule))

    @property
    def least_std(self) -> float:
        """Deviation of an entry of the least noisy prefix sum."""
        rows = np.linalg.norm(self.mechanism.factor(len(self.schedule)), axis=1)
        return self.mechanism.std * float(rows.min())

    @property
    def last_std(self) -> float:
        """Deviation of an entry of the last prefix sum."""
        last = self.mechanism.factor(len(self.schedule))[-1]
        return self.mechanism.std * float(np.linalg.norm(last))


def plan_stream(
    epsilon: float,
    delta: float,
    domain: Domain,
    dim: int,
    mechanism: str = "increments",
    first: int = 16,
    ratio: float = 2.0,
) -> StreamPlan:
    """Calibrate a mechanism on a count schedule so that a whole stream costs exactly (ε, δ).

    A part of it pays for noise being discrete.
    """
    distance, schedule = sensitivity(domain, dim), count_schedule(first, ratio)
    entries = len(noised_places(domain, dim)[0])
    stream = distance, len(schedule), entries
    quiet = calibrate(mechanism, mu_of(epsilon, delta), *stream)
    fine = quiet.std >= LEAST_STEPS * STEP
    mu = mu_within(epsilon, delta, quiet.distance(len(schedule))) if fine else 0.0
    require(mu > 0.0, f"epsilon is too large for noise on a lattice of {STEP:g}", epsilon)
    return StreamPlan(domain, dim, mu, distance, calibrate(mechanism, mu, *stream), schedule)
