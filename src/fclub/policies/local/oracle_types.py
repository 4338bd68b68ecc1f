"""`oracle-types`: the regret that is left when the types need not be learned.

A user of type k has a vector θ ~ N(μ_k, W); types have prior weights, and rewards the variance v. Given
its data, θ is a mixture of Gaussians with one covariance C for all types, and a mean m_k and a weight
for each. An observation (x, y) changes them exactly:

    s = v + xᵀCx,   log weight_k −= (y − xᵀm_k)²/2s,   m_k += Cx·(y − xᵀm_k)/s,   C −= Cx·(Cx)ᵀ/s.

Where users of a type are equal, W = 0: C stays 0 and the means stay where they were.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import Annotated, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.clustering import number_by_first
from fclub.core.compiling import compiled, inner
from fclub.core.kernels import add_outer, add_scaled, dot, multiply
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.errors import InvalidSetting
from fclub.parameters import meaning
from fclub.policies.base import KernelPolicy


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


class OracleTypes(KernelPolicy[KnownTypes]):
    """All types known, each user's own is learned: a limit.

    It knows the types' vectors, how users spread around them and how many users each type has. Which
    type a user is of, it learns from the user's own rewards, by Bayes. A type is a true cluster.
    Rewards are taken as Gaussian; `exploration` is what did best at 5, 20 and 100 visits of 2,000
    users of ten types.

    >>> import fclub
    >>> fclub.simulate(fclub.OracleTypes(), "synthetic", rounds=500)
    <Trace of oracle-types in synthetic, seed 0: 500 rounds, regret ...>
    """

    name = "oracle-types"
    oracle = True
    kernels = (recommend, feedback)

    variance: Annotated[
        float, meaning("variance of a reward around its mean", "squared reward", above=0)
    ] = 0.17
    exploration: Annotated[
        float, meaning("posterior deviations that are added to an item's score", least=0)
    ] = 0.7

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> KnownTypes:
        n, shape = problem.users, (problem.users, problem.dim)
        if self.truth is None or self.vectors is None or self.vectors.shape != shape:
            raise InvalidSetting(
                f"{self.name} has to be told true clusters and vectors: reveal them before start, "
                "in an environment that has them"
            )
        type_of = number_by_first(self.truth)
        sizes = np.bincount(type_of)
        means = np.zeros((len(sizes), problem.dim))
        np.add.at(means, type_of, self.vectors)
        means /= sizes[:, None]
        rest = self.vectors - means[type_of]
        return KnownTypes(
            evidence=np.tile(np.log(sizes / n), (n, 1)),
            means=np.tile(means, (n, 1, 1)),
            covariance=np.tile(rest.T @ rest / n, (n, 1, 1)),
            variance=self.variance,
            exploration=self.exploration,
        )

    @property
    def labels_(self) -> Indices:
        """The likeliest type of every user."""
        labels: Indices = np.argmax(self._state.evidence, axis=1)
        return labels

    @property
    def theta_(self) -> Floats:
        return mixture_means(self._state)
