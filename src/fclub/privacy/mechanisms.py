"""Mechanisms with correlated noise over the releases of one stream, and what a stream costs.

A stream releases the prefix sums of its increments. Its noise is L z: z_j independent symmetric
Gaussian matrices with the same standard deviation, L lower triangular. Seen through L⁻¹ a release is
a Gaussian mechanism with independent noise, so the exact cost after t releases is μ = c·Δ/σ, with c
the largest column norm of L⁻¹A over the first t rows and columns, A being the prefix-sum matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Protocol

import numpy as np

from fclub.config import require
from fclub.core.noise import root_weights
from fclub.core.types import Counts, Matrix, Vector
from fclub.errors import UnknownName
from fclub.privacy.calibration import mu_of
from fclub.privacy.sensitivity import Domain, entry_std, sensitivity

PROVISION = 10**9
"""How many observations a stream is provisioned for."""


class Mechanism(Protocol):
    """Correlated noise for a stream of at most `releases` releases with base deviation `std`."""

    @property
    def name(self) -> str: ...

    @property
    def releases(self) -> int: ...

    @property
    def std(self) -> float: ...

    def factor(self, releases: int) -> Matrix:
        """L: the noise of the first prefixes as combinations of the independent draws."""

    def multiplier(self, releases: int) -> float:
        """c: the cost of a stream of `releases` releases, in units of one release of the same σ."""

    def charged(self, releases: int) -> float:
        """c that the ledger charges once `releases` releases have been made."""


@dataclass(frozen=True)
class Tree:
    """The paper's binary tree (Alg. 5); paid as it grows.

    One node is drawn per leaf. The node drawn with leaf i covers the last 2^(trailing zeros of i)
    leaves; the prefix over t leaves is the sum of the nodes at t, t − lowbit(t), …
    """

    releases: int
    std: float

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

    def charged(self, releases: int) -> float:
        return self.multiplier(releases)


@dataclass(frozen=True)
class WholeTree(Tree):
    """The same, paid when it starts: no release of a phase can then be too expensive."""

    @property
    def name(self) -> str:
        return "whole-tree"

    def charged(self, releases: int) -> float:
        return self.multiplier(self.releases)


@dataclass(frozen=True)
class Increments:
    """Square-root factorization of the prefix sum; the whole stream is paid when it starts."""

    releases: int
    std: float

    @property
    def name(self) -> str:
        return "increments"

    def factor(self, releases: int) -> Matrix:
        f = root_weights(releases)
        lag = np.subtract.outer(np.arange(releases), np.arange(releases))
        return np.where(lag >= 0, f[np.maximum(lag, 0)], 0.0)

    def multiplier(self, releases: int) -> float:
        """√Σ_{j<t} f_j²: L⁻¹A = L, whose first column is the longest."""
        return sqrt(float(variance_growth(releases)[releases]))

    def charged(self, releases: int) -> float:
        return self.multiplier(self.releases)

    @property
    def variances(self) -> Vector:
        """`variances[t]` is the variance of an entry with deviation `std` after t releases."""
        return self.std**2 * variance_growth(self.releases)


@dataclass(frozen=True)
class Slots:
    """Everything is released again in every slot, with fresh noise; paid slot by slot."""

    releases: int
    std: float

    @property
    def name(self) -> str:
        return "slots"

    def factor(self, releases: int) -> Matrix:
        return np.eye(releases)

    def multiplier(self, releases: int) -> float:
        """√t: what was there at the first release is in all of them."""
        return sqrt(releases)

    def charged(self, releases: int) -> float:
        return self.multiplier(releases)


MECHANISMS: dict[str, type[Tree] | type[Increments] | type[Slots]] = {
    "tree": Tree,
    "whole-tree": WholeTree,
    "increments": Increments,
    "slots": Slots,
}
"""What a ledger can account for, by name."""


def variance_growth(releases: int) -> Vector:
    """Σ_{j<t} f_j² for t = 0, …, releases."""
    return np.concatenate([[0.0], np.cumsum(root_weights(releases) ** 2)])


def calibrate(name: str, mu: float, sensitivity: float, releases: int) -> Mechanism:
    """Noise with which a whole stream of data of that sensitivity is exactly μ-GDP."""
    if name not in MECHANISMS:
        raise UnknownName("mechanism", name, MECHANISMS)
    require(mu > 0.0, "mu must be above 0", mu)
    require(releases >= 1, "releases must be at least 1", releases)
    kind = MECHANISMS[name]
    return kind(releases, sensitivity * kind(releases, 1.0).charged(releases) / mu)


def count_schedule(first: int, ratio: float, provision: int = PROVISION) -> Counts:
    """The observation counts at which a stream releases: geometric, up to `provision`.

    Counts are public when neighbours differ in the value of one observation, so this leaks nothing.
    """
    require(first >= 1, "the first release needs at least 1 observation", first)
    require(ratio > 1.0, "the ratio between release counts must be above 1", ratio)
    counts = [first]
    while counts[-1] < provision:
        counts.append(max(counts[-1] + 1, ceil(counts[-1] * ratio)))
    return np.array(counts, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Streams over a domain that each cost exactly μ, whatever part of their schedule they use."""

    domain: Domain
    mu: float
    sensitivity: float
    mechanism: Mechanism
    schedule: Counts

    def entry_std(self, dim: int) -> Matrix:
        """What `privatize_increment` scales its noise with."""
        return entry_std(self.domain, dim, self.mechanism.std)

    @property
    def last_std(self) -> float:
        """Deviation of an entry of the last prefix sum."""
        last = self.mechanism.factor(len(self.schedule))[-1]
        return self.mechanism.std * float(np.linalg.norm(last))


def plan_stream(
    epsilon: float,
    delta: float,
    domain: Domain,
    mechanism: str = "increments",
    first: int = 16,
    ratio: float = 2.0,
) -> StreamPlan:
    """Calibrate a mechanism on a count schedule so that a whole stream costs exactly (ε, δ)."""
    mu, distance, schedule = mu_of(epsilon, delta), sensitivity(domain), count_schedule(first, ratio)
    noise = calibrate(mechanism, mu, distance, len(schedule))
    return StreamPlan(domain, mu, distance, noise, schedule)
