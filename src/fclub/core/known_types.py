"""Rounds of users whose type is learned while the types themselves are known.

A user of type k has a vector θ ~ N(μ_k, W); types have prior weights, and rewards the variance v. Given
its data, θ is a mixture of Gaussians with one covariance C for all types, and a mean m_k and a weight
for each. An observation (x, y) changes them exactly:

    s = v + xᵀCx,   log weight_k −= (y − xᵀm_k)²/2s,   m_k += Cx·(y − xᵀm_k)/s,   C −= Cx·(Cx)ᵀ/s.

Where users of a type are equal, W = 0: C stays 0 and the means stay where they were.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import add_outer, add_scaled, dot, multiply
from fclub.core.types import Floats, Matrix, Vector


class KnownTypes(NamedTuple):
    """By user: log weights of the types (n, k), their means (n, k, d), and the covariance (n, d, d)."""

    evidence: Floats
    means: Floats
    covariance: Floats
    variance: float
    exploration: float


@inner
def _weigh(evidence: Vector, weights: Vector) -> None:
    """Probabilities proportional to exp(evidence)."""
    largest = evidence[0]
    for value in evidence:
        largest = max(largest, value)
    total = 0.0
    for k in range(evidence.shape[0]):
        weights[k] = exp(evidence[k] - largest)
        total += weights[k]
    for k in range(evidence.shape[0]):
        weights[k] /= total


@compiled
def recommend(state: KnownTypes, user: int, items: Matrix) -> int:
    """argmax of the mean of θᵀx under the mixture plus `exploration` standard deviations."""
    means, covariance = state.means[user], state.covariance[user]
    types, d = means.shape
    weights, values, column = np.empty(types), np.empty(types), np.empty(d)
    _weigh(state.evidence[user], weights)
    best, best_score = 0, -np.inf
    for item in range(items.shape[0]):
        x = items[item]
        for k in range(types):
            values[k] = dot(x, means[k])
        mean = dot(weights, values)
        multiply(covariance, x, column)
        spread = max(dot(x, column), 0.0)
        for k in range(types):
            spread += weights[k] * (values[k] - mean) * (values[k] - mean)
        score = mean + state.exploration * sqrt(spread)
        if score > best_score:
            best, best_score = item, score
    return best


@compiled
def feedback(state: KnownTypes, user: int, x: Vector, y: float) -> None:
    """Condition the user's mixture on one reward."""
    means, covariance = state.means[user], state.covariance[user]
    types, d = means.shape
    column = np.empty(d)
    multiply(covariance, x, column)
    s = state.variance + dot(x, column)
    for k in range(types):
        rest = y - dot(x, means[k])
        state.evidence[user, k] -= rest * rest / (2.0 * s)
        add_scaled(means[k], column, rest / s)
    add_outer(covariance, column, -1.0 / s)


def mixture_means(state: KnownTypes) -> Floats:
    """(n, d): the mean of every user's mixture."""
    weights = np.exp(state.evidence - state.evidence.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    means: Floats = np.einsum("nk,nkd->nd", weights, state.means)
    return means
