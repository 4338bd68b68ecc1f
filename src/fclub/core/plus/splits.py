"""How many types there are: evidence for splitting a type in two, and for making one of two.

With P₀ = ((1−ω)S)⁻¹, and for each type r_k = P₀μ + Σr q_w, P_k = P₀ + Σr Q_w,

    log Z_k = ½(log det P₀ − log det P_k) + ½ r_kᵀP_k⁻¹r_k − ½ μᵀP₀μ,
    F = Σ_k log Z_k + Σ_u H(r_u) + log Γ(K)/Γ(K+n) + Σ_k log Γ(N_k+1) + log K!

is a lower bound of the log evidence of all users' data under K types, whatever the r are. A type is
split, or two are merged, if F rises.
"""

from __future__ import annotations

from math import exp, lgamma, log, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import cholesky, dot, invert, multiply, solve_lower
from fclub.core.plus.beliefs import (
    LOG_WITHIN,
    LOGIT_OWN,
    Beliefs,
    describe_types,
    digamma,
    move_own,
    write_model,
)
from fclub.core.plus.split_sums import HalfColumns, SplitSums
from fclub.core.plus.type_model import NOWHERE, TypeModel
from fclub.core.plus.type_sums import LOGIT, OWN, OWN_INFORMATION, PEOPLE, SPREAD, TypeSums
from fclub.core.types import Floats, Matrix, Vector

LEAST_GAIN = 0.6
"""A type is left out of serving if a vector of one's own explains its users better by so much each."""


class Prior(NamedTuple):
    """Of a centre: P₀, P₀μ, and log det P₀ − μᵀP₀μ."""

    precision: Matrix
    vector: Vector
    constant: float


@compiled
def make_prior(mean: Vector, covariance: Matrix, log_within: float) -> Prior:
    d = mean.shape[0]
    precision, vector = np.empty((d, d)), np.empty(d)
    scale = 1.0 / (1.0 - exp(log_within))
    log_det = d * log(scale) - invert(covariance, precision)
    for i in range(d):
        for j in range(d):
            precision[i, j] *= scale
    multiply(precision, mean, vector)
    return Prior(precision, vector, log_det - dot(mean, vector))


def prior_of(sums: TypeSums) -> Prior:
    """The mean over all users of what their servers believe."""
    people = float(sums.scalars[PEOPLE])
    spread = float(sums.scalars[SPREAD]) / people
    return make_prior(sums.mean / people, sums.covariance / people, spread)


@compiled
def log_evidence(prior: Prior, row: Vector) -> float:
    """log Z of users who share a centre and whose rows add up to `row`; nan for impossible ones."""
    d = prior.vector.shape[0]
    matrix, lower, vector, half = np.empty((d, d)), np.empty((d, d)), np.empty(d), np.empty(d)
    place = d
    for i in range(d):
        vector[i] = prior.vector[i] + row[i]
        matrix[i, i] = prior.precision[i, i] + row[place]
        place += 1
        for j in range(i + 1, d):
            matrix[j, i] = prior.precision[j, i] + 0.5 * row[place]
            place += 1
    log_det = cholesky(matrix, lower)
    solve_lower(lower, vector, half)
    return 0.5 * (prior.constant - log_det + dot(half, half))


@compiled
def evidences(prior: Prior, rows: Floats) -> Floats:
    """log Z of each type."""
    found = np.empty(rows.shape[0])
    for k in range(rows.shape[0]):
        found[k] = log_evidence(prior, rows[k])
    return found


@inner
def _count(users: float) -> float:
    """log Γ(N+1)."""
    return lgamma(max(users, 0.0) + 1.0)


@compiled
def split_gains(prior: Prior, sums: SplitSums, known: Floats, people: float) -> Floats:
    """How much F rises if a type becomes its two halves; log Z of the types is `known`."""
    types, base = sums.own.shape[0], sums.sums
    gains = np.empty(types)
    more = log(types * (types + 1.0)) - log(types + people)
    for k in range(types):
        first = log_evidence(prior, sums.half_rows[k])
        second = log_evidence(prior, base.rows[k] - sums.half_rows[k])
        entropy = sums.half_entropy[k] + sums.rest_entropy[k] - sums.entropy[k]
        counts = _count(sums.half_users[k]) + _count(base.users[k] - sums.half_users[k])
        gains[k] = first + second - known[k] + entropy + counts - _count(base.users[k]) + more
    return gains


@compiled
def merge_gains(prior: Prior, sums: SplitSums, known: Floats, people: float) -> Floats:
    """How much F rises if two types become one, above the diagonal; others are −∞."""
    types, base = sums.own.shape[0], sums.sums
    gains = np.full((types, types), -np.inf)
    less = log(types - 1.0 + people) - log(types * max(types - 1.0, 1.0))
    for a in range(types):
        for b in range(a + 1, types):
            counts = _count(base.users[a] + base.users[b]) - _count(base.users[a])
            rest = less + counts - _count(base.users[b]) - sums.merging[a, b] - known[a] - known[b]
            together = log_evidence(prior, base.rows[a] + base.rows[b])
            gains[a, b] = together + rest
    return gains


@compiled
def block_centres(prior: Prior, rows: Floats) -> tuple[Floats, Floats]:
    """Centres C_k r_k of types whose users' rows add up to these, and their covariances C_k."""
    types, d = rows.shape[0], prior.vector.shape[0]
    centres, covariances = np.empty((types, d)), np.empty((types, d, d))
    precision, vector = np.empty((d, d)), np.empty(d)
    for k in range(types):
        place = d
        for i in range(d):
            vector[i] = prior.vector[i] + rows[k, i]
            for j in range(i, d):
                precision[i, j] = prior.precision[i, j] + (1.0 if i == j else 0.5) * rows[k, place]
                precision[j, i] = precision[i, j]
                place += 1
        invert(precision, covariances[k])
        multiply(covariances[k], vector, centres[k])
    return centres, covariances


class Halves(NamedTuple):
    """Into which two each type may be split: centres, covariances, users of both; 1 where `open`."""

    centres: Floats
    uncertainty: Floats
    users: Floats
    open: Floats

    @staticmethod
    def none(types: int, dim: int) -> Halves:
        return Halves(
            np.zeros((types, 2, dim)),
            np.zeros((types, 2, dim, dim)),
            np.zeros((types, 2)),
            np.zeros(types),
        )


@compiled
def half_columns(halves: Halves) -> HalfColumns:
    """log odds of the first half: ψ(N+1) and (c, −½(ccᵀ + C)) of both, subtracted."""
    types, _, d = halves.centres.shape
    row = d + d * (d + 1) // 2
    features, bias = np.zeros((row, types)), np.zeros(types)
    columns, moments = np.empty((row, 2)), np.empty((2, row))
    for k in range(types):
        if halves.open[k] > 0.0:
            describe_types(halves.centres[k], halves.uncertainty[k], columns, moments)
            bias[k] = digamma(halves.users[k, 0] + 1.0) - digamma(halves.users[k, 1] + 1.0)
            for place in range(row):
                scale = 1.0 if place < d else -0.5
                features[place, k] = scale * (moments[0, place] - moments[1, place])
    return HalfColumns(features, bias, halves.open)


def direction(prior: Prior, sums: SplitSums, centre: Vector, place: int) -> Floats | None:
    """Where the halves of a type start: c ± s·x along which its users differ more than they should.

    x = Lv with v the top eigenvector of Lᵀ(Σr eeᵀ − Σr Q_w)L and LLᵀ = P₀⁻¹. None if users of the type
    do not differ beyond what is expected of them.
    """
    d, users = len(centre), float(sums.sums.users[place])
    triangle = np.triu_indices(d)
    scatter, information = np.zeros((d, d)), np.zeros((d, d))
    scatter[triangle] = sums.scatter[place]
    information[triangle] = 0.5 * sums.sums.rows[place, d:]
    information += np.triu(information, 1).T
    information[np.diag_indices(d)] *= 2.0
    scatter += np.triu(scatter, 1).T
    L = np.linalg.cholesky(np.linalg.inv(prior.precision))
    top = np.linalg.eigh(L.T @ (scatter - information) @ L)[1][:, -1]
    x = L @ (top if top[np.argmax(np.abs(top))] > 0.0 else -top)
    expected, found = float(x @ information @ x) / users, float(x @ scatter @ x) / users
    if not found > expected > 0.0:
        return None
    away = min(1.0, sqrt(found - expected) / expected) * x
    return np.array([centre + away, centre - away])


def start_halves(halves: Halves, beliefs: Beliefs, place: int, centres: Floats) -> Halves:
    """The same with new halves of one type."""
    changed = Halves(*(array.copy() for array in halves))
    changed.centres[place] = centres
    changed.uncertainty[place] = beliefs.uncertainty[place]
    changed.users[place] = 0.5 * beliefs.users[place]
    changed.open[place] = 1.0
    return changed


@compiled
def move_types(beliefs: Beliefs, sums: TypeSums) -> Beliefs:
    """A step of expectation maximisation: c_k = C_k r_k, N_k and the share of "own"."""
    prior = make_prior(beliefs.mean, beliefs.covariance, beliefs.scalars[LOG_WITHIN])
    centres, uncertainty = block_centres(prior, sums.rows)
    users, scalars = np.maximum(sums.users, 0.0), beliefs.scalars.copy()
    if sums.scalars[PEOPLE] > 0.0:
        logit = sums.scalars[LOGIT] / sums.scalars[PEOPLE]
        scalars[LOGIT_OWN] = move_own(logit, sums.scalars[OWN], sums.scalars[OWN_INFORMATION])
    return Beliefs(beliefs.mean, beliefs.covariance, centres, uncertainty, users, scalars)


@compiled
def move_halves(halves: Halves, prior: Prior, sums: SplitSums) -> Halves:
    """The same step for all halves."""
    types, _, d = halves.centres.shape
    base, rows = sums.sums, np.empty((2, sums.half_rows.shape[1]))
    centres, spread = np.zeros((types, 2, d)), np.zeros((types, 2, d, d))
    users = np.zeros((types, 2))
    for k in range(types):
        if halves.open[k] > 0.0:
            for place in range(rows.shape[1]):
                rows[0, place] = sums.half_rows[k, place]
                rows[1, place] = base.rows[k, place] - rows[0, place]
            centres[k], spread[k] = block_centres(prior, rows)
            users[k, 0] = max(sums.half_users[k], 0.0)
            users[k, 1] = max(base.users[k] - sums.half_users[k], 0.0)
    return Halves(centres, spread, users, halves.open)


@compiled
def paying_types(prior: Prior, sums: SplitSums, settled: float) -> Floats:
    """1 for each type from which its users are served better than from a vector of their own.

    Left out is type k if Σr·o − log Z_k − ΣH(r_k) − N_k(ψ(N_k+1) − ψ(n+K)) > g·N_k, where
    g = `LEAST_GAIN`·T_k/(T_k + `settled`) and T_k are the visits of its users: less is needed while
    its centre is not known well.
    """
    users, paying = sums.sums.users, np.empty(sums.own.shape[0])
    total = digamma(users.sum() + users.shape[0])
    for k in range(users.shape[0]):
        visits = max(sums.sums.visits[k], 0.0)
        least = LEAST_GAIN * visits / max(visits + settled, 1.0)
        typical = log_evidence(prior, sums.sums.rows[k]) + sums.entropy[k]
        typical += users[k] * (digamma(users[k] + 1.0) - total + least)
        paying[k] = 1.0 if sums.own[k] <= typical else 0.0
    return paying


@compiled
def step(
    beliefs: Beliefs, halves: Halves, sums: SplitSums, settled: float
) -> tuple[Beliefs, Halves, Floats]:
    """Types and their halves by the sums over all users, and which types pay."""
    prior = make_prior(beliefs.mean, beliefs.covariance, beliefs.scalars[LOG_WITHIN])
    moved = move_types(beliefs, sums.sums)
    return moved, move_halves(halves, prior, sums), paying_types(prior, sums, settled)


@compiled
def write_variational(beliefs: Beliefs, model: TypeModel, paying: Floats) -> None:
    """The model with the uncertainty of centres in its columns, and only types that pay.

    A column is (c, −½(ccᵀ + C)): the expectation of log evidence over the centre. Where no type pays
    everybody has a vector of one's own.
    """
    write_model(beliefs, model)
    d, types, some = beliefs.mean.shape[0], beliefs.users.shape[0], False
    for k in range(types):
        for place in range(d, model.moments.shape[2]):
            model.features[0, place, k] = -0.5 * model.moments[0, k, place]
        if paying[k] == 0.0:
            model.weights[0, k] = NOWHERE
        some |= paying[k] > 0.0
    if not some:
        model.weights[0, types] = 0.0
