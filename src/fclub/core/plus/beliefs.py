"""What a server believes of the population and its types, and how sums over users change it.

θ_u ~ (1 − own) Σ_k π_k N(c_k, W) + own N(μ, S), c_k ~ N(μ, (1−ω)S), W = ωS, reward variance v. Nothing
of it is constant: μ, S, v, ω, own, π and the centres are all learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, ndtri

from fclub.core.compiling import compiled
from fclub.core.kernels import invert
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_sums import (
    OWN,
    OWN_INFORMATION,
    PEOPLE,
    RESIDUAL,
    VISITS,
    WITHIN,
    WITHIN_INFORMATION,
    TypeSums,
)
from fclub.core.types import Floats, Matrix, Vector

VARIANCE, LOG_WITHIN, LOGIT_OWN = range(3)
"""Places in `Beliefs.scalars`: v, log ω and logit(own)."""


@dataclass(frozen=True)
class TypeRules:
    """Where learning starts, and how much data outweigh it.

    A taste has the expected squared norm `prior` and a reward the `variance`; these count as much as
    `prior_users` and `prior_visits`. log ω starts at log `within` with precision `within_precision`.
    Every type starts with one user's weight. Centres move `relaxation` times as far as one step of
    expectation maximisation would take them, and μ and S `caution` times less than a step of scoring.
    """

    types: int = 20
    dim: int = 10
    prior: float = 0.5
    variance: float = 0.2
    prior_users: float = 5.0
    prior_visits: float = 200.0
    within: float = 0.05
    within_precision: float = 20.0
    relaxation: float = 1.5
    caution: float = 3.0


LEAST_WITHIN, MOST_WITHIN = 0.01, 0.5
LEAST_VARIANCE = 1e-4
MOST_LOGIT = 9.0
LEAST_COVARIANCE = 1e-6
"""Limits that keep what is learned within numerical reason."""


class Beliefs(NamedTuple):
    """μ, S, the centres and their covariances, users by type, and `scalars`."""

    mean: Floats
    covariance: Floats
    centres: Floats
    uncertainty: Floats
    users: Floats
    scalars: Floats

    @property
    def own(self) -> float:
        """The share of users with a vector of their own."""
        return 1.0 / (1.0 + exp(-self.scalars[LOGIT_OWN]))

    @property
    def within(self) -> Matrix:
        """W."""
        spread: Matrix = exp(self.scalars[LOG_WITHIN]) * self.covariance
        return spread


def seeds(types: int, dim: int) -> Floats:
    """Where types start, in standard units: the same on every server, so that type k means the same."""
    bits = np.random.PCG64(0).random_raw(types * dim) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) / 2.0**53
    normal: Floats = ndtri(uniform).reshape(types, dim)
    return normal


def first_beliefs(rules: TypeRules) -> Beliefs:
    """Before any data; half of the users are believed to be like nobody else."""
    types, dim = rules.types, rules.dim
    scale = rules.prior / dim
    return Beliefs(
        mean=np.zeros(dim),
        covariance=np.eye(dim) * scale,
        centres=seeds(types, dim) * np.sqrt(scale),
        uncertainty=np.tile(np.eye(dim) * scale, (types, 1, 1)),
        users=np.zeros(types),
        scalars=np.array([rules.variance, log(rules.within), 0.0]),
    )


def write_model(beliefs: Beliefs, model: TypeModel) -> None:
    """Put beliefs into the form that kernels use; `model` is that of one server."""
    S_inverse = np.linalg.inv(beliefs.covariance)
    log_within, own, d = float(beliefs.scalars[LOG_WITHIN]), beliefs.own, len(beliefs.mean)
    log_det = float(np.linalg.slogdet(S_inverse)[1])
    model.variance[0] = beliefs.scalars[VARIANCE]
    model.precision[0] = S_inverse
    model.within[0] = S_inverse * exp(-log_within)
    model.vector[0] = S_inverse @ beliefs.mean
    model.offset[0, 0] = 0.5 * (log_det - d * log_within)
    model.offset[0, 1] = 0.5 * log_det - 0.5 * beliefs.mean @ model.vector[0] + log(own)
    total = beliefs.users.sum() + len(beliefs.users)
    model.weights[0] = digamma(beliefs.users + 1.0) - digamma(total) + log(1.0 - own)
    describe_types(beliefs.centres, beliefs.uncertainty, model.features[0], model.moments[0])


@compiled
def describe_types(centres: Floats, uncertainty: Floats, features: Floats, moments: Floats) -> None:
    """Columns (c, −½ccᵀ) and rows (c, ccᵀ + C) of `TypeModel`."""
    types, d = centres.shape
    for k in range(types):
        place = d
        for i in range(d):
            features[i, k] = centres[k, i]
            moments[k, i] = centres[k, i]
            for j in range(i, d):
                both = centres[k, i] * centres[k, j]
                features[place, k] = -0.5 * both
                moments[k, place] = both + uncertainty[k, i, j]
                place += 1


def move_types(beliefs: Beliefs, sums: TypeSums, rules: TypeRules) -> Beliefs:
    """Centres, their weights and the share of "own", from all users' sums."""
    between = (1.0 - exp(beliefs.scalars[LOG_WITHIN])) * beliefs.covariance
    prior = np.asarray(np.linalg.inv(between))
    centres, uncertainty = beliefs.centres.copy(), np.empty_like(beliefs.uncertainty)
    move_centres(sums.rows, prior, prior @ beliefs.mean, rules.relaxation, centres, uncertainty)
    scalars = beliefs.scalars.copy()
    slope = sums.scalars[OWN] + 2.0 * (0.5 - beliefs.own)
    step = slope / (sums.scalars[OWN_INFORMATION] + 0.5)
    scalars[LOGIT_OWN] += np.clip(step, -1.5, 1.5)
    scalars[LOGIT_OWN] = np.clip(scalars[LOGIT_OWN], -MOST_LOGIT, MOST_LOGIT)
    users = np.maximum(sums.users, 0.0)
    return beliefs._replace(centres=centres, uncertainty=uncertainty, users=users, scalars=scalars)


@compiled
def move_centres(
    rows: Floats,
    prior: Matrix,
    prior_vector: Vector,
    relaxation: float,
    centres: Floats,
    uncertainty: Floats,
) -> None:
    """C_k = (P₀ + ΣQ_w)⁻¹, and c_k towards C_k(p₀ + Σq_w)."""
    types, d = centres.shape
    precision = np.empty((d, d))
    for k in range(types):
        place = d
        for i in range(d):
            precision[i, i] = prior[i, i] + rows[k, place]
            place += 1
            for j in range(i + 1, d):
                precision[i, j] = prior[i, j] + 0.5 * rows[k, place]
                precision[j, i] = precision[i, j]
                place += 1
        invert(precision, uncertainty[k])
        for i in range(d):
            target = 0.0
            for j in range(d):
                target += uncertainty[k, i, j] * (prior_vector[j] + rows[k, j])
            centres[k, i] += relaxation * (target - centres[k, i])


def move_population(beliefs: Beliefs, sums: TypeSums, rules: TypeRules) -> Beliefs:
    """μ, S, v and ω, from all users' sums."""
    scalars, people = beliefs.scalars.copy(), float(sums.scalars[PEOPLE])
    if people < 1.0:
        return beliefs
    residual = sums.scalars[RESIDUAL] + rules.prior_visits * rules.variance
    scalars[VARIANCE] = residual / (sums.scalars[VISITS] + rules.prior_visits)
    scalars[VARIANCE] = max(scalars[VARIANCE], LEAST_VARIANCE)
    slope = sums.scalars[WITHIN] + rules.within_precision * (log(rules.within) - scalars[LOG_WITHIN])
    step = slope / (sums.scalars[WITHIN_INFORMATION] + rules.within_precision)
    scalars[LOG_WITHIN] += np.clip(step, -0.5, 0.5)
    scalars[LOG_WITHIN] = np.clip(scalars[LOG_WITHIN], log(LEAST_WITHIN), log(MOST_WITHIN))
    mean, covariance = _score(beliefs, sums, people, rules)
    return beliefs._replace(mean=mean, covariance=covariance, scalars=scalars)


def _score(beliefs: Beliefs, sums: TypeSums, people: float, rules: TypeRules) -> tuple[Vector, Matrix]:
    """A damped step of Fisher scoring for μ and S, in coordinates where S = RRᵀ is the identity.

    With Ω the mean over users of R⁻¹(S − B)R⁻ᵀ, the part of the variance that data have taken away,
    the slope in S is what R⁻¹(θ̂−μ) vary more than Ω, and the information is about ω_iω_j for each
    user, ω the eigenvalues of Ω. Plain expectation maximisation takes 1 for it, and so hardly moves
    while users have few visits.
    """
    d, mu = len(beliefs.mean), beliefs.mean
    R = np.linalg.cholesky(beliefs.covariance)
    R_inverse = np.linalg.inv(R)
    shift = sums.first - people * mu
    crossed = np.outer(sums.first, mu)
    around = sums.second - crossed - crossed.T + people * np.outer(mu, mu)
    omega = people * np.eye(d) - R_inverse @ sums.left @ R_inverse.T
    start = R_inverse @ (np.eye(d) * rules.prior / d) @ R_inverse.T
    slope = R_inverse @ around @ R_inverse.T - omega + rules.prior_users * (start - np.eye(d))
    eigenvalues, U = np.linalg.eigh(omega / people)
    eigenvalues = np.clip(eigenvalues, 0.0, 1.0)
    information = rules.prior_users + rules.caution * people * np.outer(eigenvalues, eigenvalues)
    step = U @ ((U.T @ slope @ U) / information) @ U.T
    growth, V = np.linalg.eigh(np.eye(d) + 0.5 * (step + step.T))
    half = R @ (V * np.sqrt(np.clip(growth, 0.5, 2.0)))
    whitened = R_inverse @ shift - rules.prior_users * (R_inverse @ mu)
    moved = np.linalg.solve(omega + rules.prior_users * np.eye(d), whitened)
    return mu + R @ moved, half @ half.T + LEAST_COVARIANCE * np.eye(d)
