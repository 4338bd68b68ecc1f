"""What a server believes of the population and its types, and how sums over users change it.

θ_u ~ (1 − own) Σ_k π_k N(c_k, W) + own N(μ, S), c_k ~ N(μ, (1−ω)S), W = ωS, reward variance v. Nothing
of it is constant: μ, S, v, ω, own, π and the centres are all learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.kernels import dot, invert, multiply
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_sums import (
    LOGIT,
    PEOPLE,
    RESIDUAL,
    SPREAD,
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
    `prior_users` and `prior_visits`. log ω starts at log `within` with precision `within_precision`,
    and ω is kept between `least_within` and `most_within`: were it larger than at the start, the spread
    within types would explain what types should. μ and S move `caution` times less than a step of
    scoring would take them. After `settled` visits of its users half as much speaks for serving from a
    type as in the end.
    """

    types: int = 20
    dim: int = 10
    prior: float = 0.5
    variance: float = 0.2
    prior_users: float = 5.0
    prior_visits: float = 200.0
    within: float = 0.05
    within_precision: float = 1.0
    least_within: float = 1e-4
    most_within: float = 0.05
    caution: float = 3.0
    settled: float = 0.0

    @staticmethod
    def alone(types: int, dim: int) -> TypeRules:
        """Of a server that learns types from its own users only, which takes longer."""
        return TypeRules(types=types, dim=dim, settled=10.0 * dim**2)


LEAST_VARIANCE = 1e-4
MOST_LOGIT = 9.0
LEAST_COVARIANCE = 1e-6
"""Limits that keep what is learned within numerical reason."""


class PopulationPrior(NamedTuple):
    """μ and S = `scale`·RRᵀ as expected before any data, which count as much as so many `users`."""

    mean: Floats
    root: Floats
    scale: float
    users: float

    @property
    def covariance(self) -> Matrix:
        return np.asarray(self.root @ self.root.T * self.scale, dtype=np.float64)

    @staticmethod
    def of(rules: TypeRules) -> PopulationPrior:
        """What the rules say."""
        dim = rules.dim
        return PopulationPrior(np.zeros(dim), np.eye(dim), rules.prior / dim, rules.prior_users)


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


def first_beliefs(rules: TypeRules) -> Beliefs:
    """Before any data everybody is of one type, or, as half of the users, unlike all others."""
    dim = rules.dim
    scale = rules.prior / dim
    return Beliefs(
        mean=np.zeros(dim),
        covariance=np.eye(dim) * scale,
        centres=np.zeros((1, dim)),
        uncertainty=np.eye(dim)[None] * scale,
        users=np.zeros(1),
        scalars=np.array([rules.variance, log(rules.within), 0.0]),
    )


@compiled
def write_model(beliefs: Beliefs, model: TypeModel) -> None:
    """Put beliefs into the form that kernels use; `model` is that of one server."""
    d, precision, vector = beliefs.mean.shape[0], model.precision[0], model.vector[0]
    log_det = -invert(beliefs.covariance, precision)
    log_within = beliefs.scalars[LOG_WITHIN]
    own = 1.0 / (1.0 + exp(-beliefs.scalars[LOGIT_OWN]))
    model.variance[0] = beliefs.scalars[VARIANCE]
    for i in range(d):
        for j in range(d):
            model.within[0, i, j] = precision[i, j] * exp(-log_within)
    multiply(precision, beliefs.mean, vector)
    model.offset[0, 0] = 0.5 * (log_det - d * log_within)
    model.offset[0, 1] = 0.5 * (log_det - dot(beliefs.mean, vector))
    types, total = beliefs.users.shape[0], 0.0
    for k in range(types):
        total += beliefs.users[k] + 1.0
    for k in range(types):
        model.weights[0, k] = log(1.0 - own) + digamma(beliefs.users[k] + 1.0) - digamma(total)
    model.weights[0, types] = log(own)
    describe_types(beliefs.centres, beliefs.uncertainty, model.features[0], model.moments[0])


@compiled
def digamma(x: float) -> float:
    """ψ(x) for x ≥ 1: by ψ(x) = ψ(x+1) − 1/x until the asymptotic series is exact to 10⁻¹²."""
    shift = 0.0
    while x < 12.0:
        shift -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    series = square * (
        1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132)))
    )
    return shift + log(x) - 0.5 / x - series


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


def tell_beliefs(beliefs: Beliefs, sums: TypeSums) -> None:
    """Note in a server's sums where it took the slopes: its beliefs, for each of its users."""
    people = float(sums.scalars[PEOPLE])
    sums.mean[:], sums.covariance[:] = people * beliefs.mean, people * beliefs.covariance
    sums.scalars[LOGIT] = people * beliefs.scalars[LOGIT_OWN]
    sums.scalars[SPREAD] = people * beliefs.scalars[LOG_WITHIN]


@compiled
def move_own(logit: float, slope: float, information: float) -> float:
    """A step of scoring for logit(own), limited: the prior is worth two users, one of each kind."""
    step = (slope + 1.0 - 2.0 / (1.0 + exp(-logit))) / (information + 0.5)
    return min(max(logit + min(max(step, -1.5), 1.5), -MOST_LOGIT), MOST_LOGIT)


def _limited(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def move_population(
    beliefs: Beliefs, sums: TypeSums, rules: TypeRules, prior: PopulationPrior
) -> Beliefs:
    """μ, S, v and ω, from all users' sums."""
    scalars, people = beliefs.scalars.copy(), float(sums.scalars[PEOPLE])
    if people < 1.0:
        return beliefs
    residual = sums.scalars[RESIDUAL] + rules.prior_visits * rules.variance
    scalars[VARIANCE] = residual / (sums.scalars[VISITS] + rules.prior_visits)
    scalars[VARIANCE] = max(scalars[VARIANCE], LEAST_VARIANCE)
    spread = float(sums.scalars[SPREAD]) / people
    slope = float(sums.scalars[WITHIN]) + rules.within_precision * (log(rules.within) - spread)
    step = slope / (float(sums.scalars[WITHIN_INFORMATION]) + rules.within_precision)
    moved = spread + _limited(step, -0.5, 0.5)
    scalars[LOG_WITHIN] = _limited(moved, log(rules.least_within), log(rules.most_within))
    mean, covariance = _score(sums, people, rules.caution, prior)
    return beliefs._replace(mean=mean, covariance=covariance, scalars=scalars)


def _score(
    sums: TypeSums, people: float, caution: float, prior: PopulationPrior
) -> tuple[Vector, Matrix]:
    """A damped step of Fisher scoring for μ and S, in coordinates where S = RRᵀ is the identity.

    The slope in S is half of what z vary more than ΣQ_S says, and its information is about ½ω_iω_j for
    each user, ω the eigenvalues of Ω, the mean of RᵀQ_S R: the part of the variance that data take
    away. Plain expectation maximisation takes 1 for ω, and so hardly moves while users have few visits.
    """
    mu, d = sums.mean / people, len(sums.mean)
    R = np.linalg.cholesky(sums.covariance / people)
    R_inverse = np.linalg.inv(R)
    omega = R.T @ sums.information @ R
    expected = R_inverse @ prior.root
    start = expected @ expected.T * prior.scale
    slope = R.T @ sums.second @ R - omega + prior.users * (start - np.eye(d))
    eigenvalues, U = np.linalg.eigh(omega / people)
    eigenvalues = np.clip(eigenvalues, 0.0, 1.0)
    information = prior.users + caution * people * np.outer(eigenvalues, eigenvalues)
    step = U @ ((U.T @ slope @ U) / information) @ U.T
    growth, V = np.linalg.eigh(np.eye(d) + 0.5 * (step + step.T))
    half = R @ (V * np.sqrt(np.clip(growth, 0.5, 2.0)))
    towards = R.T @ sums.slope - prior.users * (R_inverse @ (mu - prior.mean))
    moved = np.linalg.solve(omega + prior.users * np.eye(d), towards)
    return mu + R @ moved, half @ half.T + LEAST_COVARIANCE * np.eye(d)
