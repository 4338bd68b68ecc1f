"""What is public before the first visit: units of tastes, items as expected, bounds of contributions.

Users who visit T times on average are taken for Poisson(T) visitors, and items for isotropic. Then a
user with k visits has E[G] = k·diag(g), and Ω of the contribution follows from k alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, expm1, lgamma, log, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.population.contribution import INFORMATION_WEIGHT, MEAN_WEIGHT, PublicPoint
from fclub.core.types import Floats, Matrix, Vector

VARIANCE = 0.2
"""v: the variance of a reward, in contributions and in serving."""

SQUARED_NORM, CONSTANT_UNIT = 0.5, 0.3
"""Expected squared norm of a taste; the unit of a constant feature's coordinate, relative to others."""

TAIL = 1e-12
"""Poisson probabilities below this are left out."""


@dataclass(frozen=True)
class PublicModel:
    """d features, of which the last is `constant` where all items share one."""

    dim: int
    constant: float | None = None

    @property
    def unit(self) -> Vector:
        """D: the deviation of each coordinate of a taste; D² is the covariance at the public start."""
        unit = np.full(self.dim, sqrt(SQUARED_NORM / self.dim))
        if self.constant is not None:
            unit[-1] *= CONSTANT_UNIT
        return unit

    @property
    def item(self) -> Vector:
        """g: the expected square of each feature."""
        if self.constant is None:
            return np.full(self.dim, 1.0 / self.dim)
        square = self.constant**2
        item = np.full(self.dim, (1.0 - square) / max(self.dim - 1, 1))
        item[-1] = square
        return item


class Population(NamedTuple):
    """Mean and covariance of users' tastes, in units of D: 0 and I at the public start."""

    mean: Vector
    covariance: Matrix

    @staticmethod
    def start(dim: int) -> Population:
        return Population(np.zeros(dim), np.eye(dim))


def public_point(model: PublicModel, population: Population) -> PublicPoint:
    """Where contributions are taken."""
    root = np.linalg.cholesky(population.covariance)
    mean = np.linalg.solve(root, population.mean)
    return PublicPoint(np.ascontiguousarray(model.unit[:, None] * root), mean, VARIANCE)


@lru_cache(maxsize=256)
def visit_numbers(visits: float) -> tuple[Floats, Floats]:
    """Numbers k ≥ 1 of visits, and their probabilities under Poisson(T)."""
    reach = 12.0 * sqrt(visits) + 12.0
    k = np.arange(max(1, int(visits - reach)), int(visits + reach) + 1, dtype=np.float64)
    logs = k * log(visits) - visits - np.array([lgamma(number + 1.0) for number in k])
    likely = np.exp(logs)
    return k[likely > TAIL], likely[likely > TAIL]


def active(visits: float) -> float:
    """1 − e^(−T): the share of users with a visit."""
    return -expm1(-visits)


def expected_information(
    model: PublicModel, population: Population, visits: float, past: float = 0.0
) -> Matrix:
    """E[Ω] of a user with `past` + Poisson(T) visits who has at least one, in units in which S = I."""
    root = model.unit[:, None] * np.linalg.cholesky(population.covariance)
    rate, U = np.linalg.eigh(root.T @ (model.item[:, None] * root) / VARIANCE)
    taken = _taken(np.maximum(rate, 0.0), visits, past)
    return np.asarray((U * taken) @ U.T, dtype=np.float64)


def _taken(rate: Vector, visits: float, past: float) -> Vector:
    k, likely = visit_numbers(visits)
    shares = np.outer(k + past, rate)
    mean = likely @ (shares / (1.0 + shares))
    if past == 0.0:
        return np.asarray(mean / active(visits), dtype=np.float64)
    still = past * rate
    return np.asarray(mean + exp(-visits) * still / (1.0 + still), dtype=np.float64)


def present(visits: float, past: float = 0.0) -> float:
    """The share of users who have data: all of them where there are `past` visits."""
    return 1.0 if past > 0.0 else active(visits)


def clip_norm(model: PublicModel, visits: float, past: float = 0.0) -> float:
    """C = √(a²t + (t² + t²/d)/4 + w²t²/d), t = tr E[Ω] at the public start.

    The root mean square of a contribution of users who are alike: most are below it.
    """
    start = Population.start(model.dim)
    t = float(np.trace(expected_information(model, start, visits, past)))
    square = t * t / model.dim
    slopes = (t * t + square) / 4.0
    return sqrt(MEAN_WEIGHT**2 * t + slopes + INFORMATION_WEIGHT**2 * square)
