"""The audit: release worst-case neighbours many times and try to tell them apart.

It attacks a release function, data in and messages out, and knows only what is claimed: the cost μ
and the covariance of the noise. It looks at fields without noise, at numbers off the lattice, at the
covariance of both neighbours together and of each, and at how well two statistics separate them.

All tests are calibrated so that a mechanism that keeps its claim fails an audit in less than one of a
hundred runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import betaincinv, ndtri

from fclub.config import require
from fclub.core.lattice import STEP
from fclub.core.types import Counts, Floats, Matrix, Vector
from fclub.privacy.sensitivity import Domain, worst_pair

CONFIDENCE = 0.999
_RIDGE = 1e-9
"""Keeps the discriminant defined where a release has no noise at all."""


@dataclass(frozen=True)
class Interval:
    """A measured value and where it has to lie."""

    value: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low <= self.value <= self.high


def whitened(noised: Matrix, covariance: Matrix) -> Matrix:
    """Releases, one per row, without their mean and in units in which the claimed noise is N(0, I)."""
    centred = noised - noised.mean(axis=0)
    root = np.linalg.cholesky(covariance)
    white: Matrix = solve_triangular(root, centred.T, lower=True).T
    return white


def eigenvalue_intervals(white: Matrix) -> tuple[Interval, Interval]:
    """Smallest and largest eigenvalue of the sample covariance of n vectors in p dimensions.

    For N(0, I) both are within (1 ± (√(p/n) + 4/√n))² but for a chance of 2e^(−8).
    """
    n, p = white.shape
    values = np.linalg.eigvalsh(white.T @ white / (n - 1))
    slack = sqrt(p / n) + 4.0 / sqrt(n)
    low, high = max(0.0, 1.0 - slack) ** 2, (1.0 + slack) ** 2
    return Interval(float(values[0]), low, high), Interval(float(values[-1]), low, high)


def trace_interval(white: Matrix) -> Interval:
    """Mean variance: a wrong scale moves it although every eigenvalue may stay in its interval."""
    n, p = white.shape
    slack = 5.0 * sqrt(2.0 / (n * p))
    return Interval(float((white**2).sum() / ((n - 1) * p)), 1.0 - slack, 1.0 + slack)


def likelihood_ratio(shift: Vector, covariance: Matrix) -> Vector:
    """Direction of the best test between two Gaussians with the claimed covariance: Σ⁻¹(m₁ − m₀)."""
    return np.asarray(np.linalg.solve(covariance, shift), dtype=np.float64)


def linear_discriminant(first: Matrix, second: Matrix) -> Vector:
    """The same with mean and covariance learned from releases: it sees what the claim does not say."""
    pooled: Any = (np.cov(first, rowvar=False) + np.cov(second, rowvar=False)) / 2.0
    pooled[np.diag_indices_from(pooled)] += _RIDGE * max(1.0, float(np.trace(pooled)))
    return np.asarray(np.linalg.solve(pooled, second.mean(axis=0) - first.mean(axis=0)), np.float64)


def upper_bound(successes: Counts, trials: int, risk: float) -> Floats:
    """Clopper–Pearson upper bounds of proportions."""
    rest = np.maximum(trials - successes, 1)
    bound = betaincinv(successes + 1, rest, 1.0 - risk)
    return np.asarray(np.where(successes == trials, 1.0, bound), dtype=np.float64)


def _proved(first: Floats, second: Floats, thresholds: Floats, confidence: float) -> Floats:
    """Lower confidence bound on μ for each threshold; −∞ where a rate is not bounded at all."""
    risk = (1.0 - confidence) / 2.0
    positives = np.count_nonzero(first > thresholds[:, None], axis=1)
    negatives = np.count_nonzero(second <= thresholds[:, None], axis=1)
    alpha = upper_bound(positives, len(first), risk)
    beta = upper_bound(negatives, len(second), risk)
    return np.asarray(ndtri(1.0 - beta) + ndtri(1.0 - alpha), dtype=np.float64)


def mu_lower_bound(
    train: tuple[Floats, Floats], test: tuple[Floats, Floats], confidence: float = CONFIDENCE
) -> float:
    """A lower confidence bound on μ from scores of both sides.

    A test with false positive rate α and false negative rate β shows μ ≥ Φ⁻¹(1−β) + Φ⁻¹(1−α). The
    threshold is the one that proves most on the training half; on the other half both rates are
    bounded by Clopper–Pearson, sharing the risk.
    """
    candidates = np.quantile(np.concatenate(train), np.linspace(0.01, 0.99, 99))
    best = int(np.argmax(_proved(*train, candidates, confidence)))
    return max(0.0, float(_proved(*test, candidates[[best]], confidence)[0]))


class Data(NamedTuple):
    """Observations in the order in which they arrive."""

    features: Matrix
    rewards: Vector


class Released(NamedTuple):
    """What left in many independent trials, one row each.

    `noised` are the numbers that should carry noise, `plain` all others: counts, times, how many.
    """

    noised: Matrix
    plain: Floats


class TargetGuarantee(NamedTuple):
    """What a target promises: its total cost and the covariance of the noise in `Released.noised`."""

    mu: float
    covariance: Matrix


class Target(Protocol):
    """Something that turns observations into messages."""

    @property
    def domain(self) -> Domain: ...

    @property
    def dim(self) -> int: ...

    @property
    def observations(self) -> int: ...

    @property
    def claim(self) -> TargetGuarantee: ...

    def expected(self, data: Data) -> Vector:
        """What `noised` would be without noise, up to a constant."""

    def release(self, data: Data, trials: int) -> Released:
        """Independent trials, with fresh noise in each."""


CANARIES = ("worst", "gram", "reward")


class Canary(NamedTuple):
    """Two neighbours: the same observations except the first, which is released most often."""

    name: str
    first: Data
    second: Data


@dataclass(frozen=True)
class Finding:
    """The outcome of one test on one canary."""

    canary: str
    test: str
    interval: Interval

    @property
    def passed(self) -> bool:
        return self.interval.inside


def canaries(domain: Domain, dim: int, observations: int) -> list[Canary]:
    """Worst-case neighbours of a domain.

    `worst` attains the sensitivity ((x, 1)/(−x, 1) in the plain domain), `gram` moves only the Gram
    matrix as far as the rewards allow ((e₁, 0)/(e₂, 0)), `reward` only the reward.
    """
    room = np.sqrt(domain.norm**2 - (domain.constant or 0.0) ** 2)
    axes = np.zeros((2, dim))
    axes[[0, 1], [0, 1]] = room
    if domain.constant is not None:
        axes[:, -1] = domain.constant
    still = min(max(0.0, domain.low), domain.high)
    pairs = {
        "worst": worst_pair(domain, dim),
        "gram": ((axes[0], still), (axes[1], still)),
        "reward": ((axes[0], domain.low), (axes[0], domain.high)),
    }

    def with_first(x: Vector, y: float) -> Data:
        features, rewards = np.tile(axes[1], (observations, 1)), np.full(observations, still)
        features[0], rewards[0] = x, y
        return Data(features, rewards)

    return [Canary(name, with_first(*a), with_first(*b)) for name, (a, b) in pairs.items()]


Progress = Callable[[int], None]


def audit(
    target: Target,
    trials: int = 3_000,
    names: tuple[str, ...] = CANARIES,
    progress: Progress | None = None,
) -> list[Finding]:
    """Attack a target with the named canaries, `trials` releases of each neighbour."""
    require(trials >= 100, "an audit needs at least 100 trials", trials)
    findings = []
    for canary in canaries(target.domain, target.dim, target.observations):
        if canary.name in names:
            sides = (target.release(side, trials) for side in (canary.first, canary.second))
            findings += _examine(target, canary, *sides)
            if progress is not None:
                progress(1)
    return findings


def _examine(target: Target, canary: Canary, first: Released, second: Released) -> list[Finding]:
    differing = _plain_difference(first.plain, second.plain)
    found = {"un-noised fields": Interval(differing, 0.0, 0.0)}
    mu, covariance = target.claim
    size = len(covariance)
    unclaimed = max(abs(side.noised.shape[1] - size) for side in (first, second))
    found["unclaimed numbers"] = Interval(float(unclaimed), 0.0, 0.0)
    strays = sum(_off_lattice(side.noised) for side in (first, second))
    found["numbers off the lattice"] = Interval(float(strays), 0.0, 0.0)
    if unclaimed == 0:
        sides = [whitened(side.noised, covariance) for side in (first, second)]
        white = np.concatenate(sides)
        found["least eigenvalue"], found["largest eigenvalue"] = eigenvalue_intervals(white)
        found["trace"] = trace_interval(white)
        found["trace of the first"], found["trace of the second"] = map(trace_interval, sides)
        shift = target.expected(canary.second) - target.expected(canary.first)
        direction = likelihood_ratio(shift, covariance)
        found["μ by likelihood ratio"] = _guess(direction, first, second, mu)
        half = len(first.noised) // 2
        direction = linear_discriminant(first.noised[:half], second.noised[:half])
        found["μ by discriminant"] = _guess(direction, first, second, mu)
    return [Finding(canary.name, test, interval) for test, interval in found.items()]


def _off_lattice(noised: Matrix) -> int:
    """How many numbers are no whole multiples of a step: their low bits may tell of the data."""
    steps = noised / STEP
    return int(np.count_nonzero(steps != np.rint(steps)))


def _plain_difference(first: Floats, second: Floats) -> float:
    """How many trials' un-noised fields differ from those of the first trial of the first side."""
    if first.shape[1] != second.shape[1]:
        return float(len(first))
    both = np.concatenate([first, second])
    return float(np.count_nonzero(np.any(both != both[0], axis=1)))


def _guess(direction: Vector, first: Released, second: Released, mu: float) -> Interval:
    """Lower bound on μ that the scores along a direction prove; must not exceed the claim."""
    scores = first.noised @ direction, second.noised @ direction
    half = len(scores[0]) // 2
    train, test = (scores[0][:half], scores[1][:half]), (scores[0][half:], scores[1][half:])
    return Interval(mu_lower_bound(train, test), 0.0, mu)
