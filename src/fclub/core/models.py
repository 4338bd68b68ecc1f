"""Ridge regressions kept ready for scoring: statistics, inverse and estimate, one row per model.

`Independent` plays rounds of models that never exchange anything: every user belongs to a fixed one.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import beside, compiled, inner
from fclub.core.kernels import (
    add_matrix,
    add_outer,
    add_scaled,
    choose,
    clear,
    grow_inverse,
    invert,
    multiply,
)
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector

REFRESH = 1024
"""A model's inverse is recomputed from its statistics each time after this number of observations."""


class Models(NamedTuple):
    """(V, b, T), (λI+V)⁻¹ and θ̂ = (λI+V)⁻¹b of many models."""

    gram: Floats
    moment: Floats
    counts: Counts
    inverse: Floats
    theta: Floats

    @staticmethod
    def zeros(rows: int, dim: int, ridge: float) -> Models:
        inverse = np.zeros((rows, dim, dim))
        inverse[:, range(dim), range(dim)] = 1.0 / ridge
        return Models(
            np.zeros((rows, dim, dim)),
            np.zeros((rows, dim)),
            np.zeros(rows, dtype=np.int64),
            inverse,
            np.zeros((rows, dim)),
        )


@inner
def refresh_model(models: Models, row: int, ridge: float) -> None:
    """Recompute inverse and estimate from the statistics."""
    d = models.moment.shape[1]
    shifted = models.gram[row].copy()
    for i in range(d):
        shifted[i, i] += ridge
    invert(shifted, models.inverse[row])
    multiply(models.inverse[row], models.moment[row], models.theta[row])


@inner
def learn(models: Models, row: int, x: Vector, y: float, ridge: float) -> None:
    """Take one observation in by rank-one updates, with a refresh now and then against drift."""
    add_outer(models.gram[row], x, 1.0)
    add_scaled(models.moment[row], x, y)
    models.counts[row] += 1
    if models.counts[row] % REFRESH == 0:
        refresh_model(models, row, ridge)
    else:
        grow_inverse(models.inverse[row], x, 1.0)
        multiply(models.inverse[row], models.moment[row], models.theta[row])


@compiled
def ridge_radius(count: float, dim: int, ridge: float, sigma_0: float, alpha: float) -> float:
    """β of one ridge regression (Abbasi-Yadkori et al. 2011, Theorem 2), ‖x‖ ≤ 1 and ‖θ‖ ≤ 1."""
    growth = 2.0 * log(1.0 / alpha) + dim * log(1.0 + count / (dim * ridge))
    return sigma_0 * sqrt(growth) + sqrt(ridge)


@beside
def estimate_all(gram: Floats, moment: Floats, ridge: float, theta: Floats) -> None:
    """θ̂ = (λI+V)⁻¹b for every row."""
    rows, d = moment.shape
    shifted = np.empty((d, d))
    inverse = np.empty((d, d))
    for row in range(rows):
        for i in range(d):
            for j in range(d):
                shifted[i, j] = gram[row, i, j]
            shifted[i, i] += ridge
        invert(shifted, inverse)
        multiply(inverse, moment[row], theta[row])


class Independent(NamedTuple):
    """`failure` is the probability that one model's confidence set is wrong; a `width` of 0 or more
    takes the place of its radius."""

    models: Models
    model_of: Indices
    ridge: float
    sigma_0: float
    failure: float
    exploration: float
    width: float = -1.0


@compiled
def recommend(state: Independent, user: int, items: Matrix) -> int:
    """LinUCB (Abbasi-Yadkori et al. 2011) with the model of the user."""
    row = state.model_of[user]
    count, dim = float(state.models.counts[row]), items.shape[1]
    radius = state.width
    if radius < 0.0:
        radius = state.exploration * ridge_radius(count, dim, state.ridge, state.sigma_0, state.failure)
    return choose(items, state.models.theta[row], state.models.inverse[row], radius)


@compiled
def feedback(state: Independent, user: int, x: Vector, y: float) -> None:
    learn(state.models, state.model_of[user], x, y, state.ridge)


@inner
def clear_model(models: Models, row: int) -> None:
    clear(models.gram[row], models.moment[row])
    models.counts[row] = 0


@inner
def add_user(clusters: Models, row: int, users: Models, user: int) -> None:
    """Add a user's statistics to a cluster's; the cluster has to be refreshed afterwards."""
    add_matrix(clusters.gram[row], users.gram[user], 1.0)
    add_scaled(clusters.moment[row], users.moment[user], 1.0)
    clusters.counts[row] += users.counts[user]
