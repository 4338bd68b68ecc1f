"""Statistical tests of the audit: does the noise have the claimed covariance, how well can one guess?

All of them are calibrated so that a mechanism that keeps its claim fails an audit in less than one
of a hundred runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import betaincinv, ndtri

from fclub.core.types import Counts, Floats, Matrix, Vector

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
