"""What releases say of types of tastes: a Kalman filter over all centres together.

In the frame of a released population N(m, S = RRᵀ), in which it is N(0, I), tastes are

    θ ~ (1 − w0) Σ_k π_k N(c_k, ωI) + w0 N(0, I).

A user's row (q_w, Q_w) and its probabilities w_k of the types are those of `core.plus.type_model`. A
release holds Σ_u w_k e_k, e_k = q_w − Q_w c_k, for every type at the centres that were released before:
the slopes of all users' log evidence in the centres. If the true centres were θ their expectation
would be about Σ_j A_kj Q̄(θ_j − c_j), with A = Σ_u w wᵀ and Q̄ the mean of Q_w: users who cannot be told
apart yet pull at several centres at once. A is worked out from public draws of users of these types.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fclub.core.plus.beliefs import Beliefs, seeds, write_model
from fclub.core.plus.type_model import TypeModel
from fclub.core.population.contribution import RESIDUAL_WEIGHT, SHARE_WEIGHT, TYPES
from fclub.core.population.model import VARIANCE, Population, PublicModel, expected_information
from fclub.core.population.rounds import START_WEIGHT
from fclub.core.threads import one_thread
from fclub.core.types import Floats, Matrix, Vector

WITHIN = 0.1
"""ω: the share of the population's variance within a type."""

DRIFT = 0.03
"""Before each release centres are believed to have moved by this part of the population's variance."""

LONGEST = 2.0
"""No centre moves further at once, in deviations of the population."""

DRAWS = 2000
"""Users who are drawn for A."""

TOLD = 0.3
"""Users are served from types once this part of the centres' variance is told."""

TIGHT = 0.6
"""The clip norm relative to the root mean square of users whose types are known."""


class ReleasedTypes(NamedTuple):
    """Centres in the frame, the covariance of all their coordinates, and the shares of all users."""

    centres: Floats
    covariance: Floats
    shares: Vector

    @staticmethod
    def start(dim: int) -> ReleasedTypes:
        """Before any release: public seeds."""
        spread = 1.0 - WITHIN
        return ReleasedTypes(
            centres=seeds(TYPES, dim) * sqrt(spread),
            covariance=spread * np.eye(TYPES * dim),
            shares=np.full(TYPES, 1.0 / TYPES),
        )

    @property
    def told(self) -> float:
        """The part of the centres' variance that is gone, as their users have it."""
        types, dim = self.centres.shape
        rest = self.shares @ np.diag(self.covariance).reshape(types, dim).sum(axis=1)
        return 1.0 - float(rest) / ((1.0 - WITHIN) * dim)


def type_information(
    model: PublicModel, population: Population, visits: float, past: float = 0.0
) -> Matrix:
    """Q̄ = E[(1/Gw + ω)⁻¹] in the frame, as `expected_information` has E[Ω], which is that for ω = 1."""
    within = population._replace(covariance=WITHIN * population.covariance)
    return expected_information(model, within, visits, past) / WITHIN


def type_clip(model: PublicModel, visits: float, past: float = 0.0) -> float:
    """C = .4√(β²t/2 + .4γ²), t = tr E[Ω] at the public start."""
    start = Population.start(model.dim)
    t = float(np.trace(expected_information(model, start, visits, past)))
    return TIGHT * sqrt(0.5 * RESIDUAL_WEIGHT**2 * t + 0.4 * SHARE_WEIGHT**2)


def learn_types(
    types: ReleasedTypes, values: Vector, noise: float, users: float, information: Matrix
) -> ReleasedTypes:
    """One step of the filter, by sums over so many users with Q̄ = `information` and so much noise."""
    K, d = types.centres.shape
    body = values[: K * (d + 1)].reshape(K, d + 1)
    with one_thread():
        types = types._replace(shares=_learn_shares(types.shares, body[:, d], noise, users))
        A = _together(types, information) * users
        P = types.covariance + DRIFT * np.eye(K * d)
        FP = _both(A, information, P)
        total = _both(A, information, FP.T) + np.kron(A, information)
        total[np.diag_indices(K * d)] += (noise / RESIDUAL_WEIGHT) ** 2
        gain = cho_solve(cho_factor(total, lower=True), FP).T
        step = (gain @ (body[:, :d] / RESIDUAL_WEIGHT).ravel()).reshape(K, d)
        length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-12)
        covariance = P - gain @ FP
    return types._replace(
        centres=types.centres + step * np.minimum(1.0, LONGEST / length),
        covariance=0.5 * (covariance + covariance.T),
    )


def _both(A: Matrix, Q: Matrix, matrix: Matrix) -> Matrix:
    """(A ⊗ Q) times a matrix."""
    K, d = len(A), len(Q)
    inner = Q @ matrix.reshape(K, d, K * d)
    product: Matrix = (A @ inner.reshape(K, -1)).reshape(K * d, K * d)
    return product


def _learn_shares(shares: Vector, sums: Vector, noise: float, users: float) -> Vector:
    """Moved by as much of the released shares as is probably not their noise."""
    usual = (0.5 / len(shares)) ** 2
    doubt = (noise / (SHARE_WEIGHT * users)) ** 2
    moved = shares + usual / (usual + doubt) * (sums / (SHARE_WEIGHT * users) - shares)
    moved = np.clip(moved, 0.1 / len(shares), 5.0 / len(shares))
    return np.asarray(moved / moved.sum(), dtype=np.float64)


def _together(types: ReleasedTypes, Q: Matrix) -> Matrix:
    """E wwᵀ of users of these types, about each of whom Q is known."""
    centres = types.centres
    at = (np.arange(DRAWS) + 0.5) / DRAWS
    drawn = np.minimum(np.searchsorted(np.cumsum(types.shares), at), len(centres) - 1)
    deviations = np.linalg.inv(np.linalg.cholesky(Q))
    estimates = centres[drawn] + seeds(DRAWS, len(Q)) @ deviations
    evidence = estimates @ (Q @ centres.T) + np.log(types.shares)
    evidence -= 0.5 * np.einsum("ki,ij,kj->k", centres, Q, centres)
    weights = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    together: Matrix = weights.T @ weights / DRAWS
    return together


def beliefs_of(
    model: PublicModel, population: Population, types: ReleasedTypes, users: float
) -> Beliefs:
    """In the units of features."""
    dim, unit = model.dim, model.unit
    root = unit[:, None] * np.linalg.cholesky(population.covariance)
    mean = unit * population.mean
    blocks = [types.covariance[k : k + dim, k : k + dim] for k in range(0, TYPES * dim, dim)]
    return Beliefs(
        mean=mean,
        covariance=root @ root.T,
        centres=mean + types.centres @ root.T,
        uncertainty=np.array([root @ block @ root.T for block in blocks]),
        users=users * types.shares,
        scalars=np.array([VARIANCE, log(WITHIN), log(START_WEIGHT / (1.0 - START_WEIGHT))]),
    )


def type_model(beliefs: Beliefs) -> TypeModel:
    """What users are weighed with and served from."""
    made = TypeModel.zeros(1, len(beliefs.users), len(beliefs.mean))
    write_model(beliefs, made)
    return made
