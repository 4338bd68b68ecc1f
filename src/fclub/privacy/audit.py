"""What audits share: worst-case neighbours, findings, and bounds on μ that guesses prove."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaincinv, ndtri

from fclub.core.types import Counts, Floats, Matrix, Vector
from fclub.privacy.sensitivity import Domain, worst_pair

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


@dataclass(frozen=True)
class Finding:
    """The outcome of one test on one canary."""

    canary: str
    test: str
    interval: Interval

    @property
    def passed(self) -> bool:
        return self.interval.inside


def linear_discriminant(first: Matrix, second: Matrix) -> Vector:
    """Direction of the best linear test, with means and covariance learned from releases."""
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
    train: tuple[Floats, Floats], test: tuple[Floats, Floats], confidence: float
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


class Canary(NamedTuple):
    """Two neighbours: the same observations except the first, which is released most often."""

    name: str
    first: Data
    second: Data


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
