"""What releases say of the population: a bank of Kalman filters, replayable from the releases alone.

The state is x = (m̃, svec S̃, log v) in units of D, and e, the sampling error of an estimate from all
data so far. With y the slopes of a release, taken at the public point x_r,

    ỹ = Jᵀy = F(x + e_r − x_r) + noise,    J = blockdiag(R̃⁻¹, R̃⁻¹ ⊗ₛ R̃⁻¹, 1),    F = JᵀFwJ,
    Fw: n_a Ω̄ for the mean, ½n_a(Ω̄ ⊗ₛ Ω̄)(1 + .8/T) for S, ½n_a svec(Ω̄ − Ω̄²) in the column of log v,
    e_r = ρe_{r−1} + N(0, 1.5(1 − ρ)F⁻¹).

Data are cumulative: ρ, the share of them that an earlier release held, keeps them from being counted
twice while their noise is averaged. log v is never measured: a nuisance that takes up the isotropic
part of the slope in S while data are few.

The bank has four priors, from "nothing in common beyond the public start" to "much", weighed by the
likelihood of their innovations. Its weighted mean is the next public point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.population.contribution import COUNT_WEIGHT, INFORMATION_WEIGHT, MEAN_WEIGHT
from fclub.core.population.model import Population, PublicModel, expected_information, present
from fclub.core.population.threads import one_thread
from fclub.core.types import Floats, Indices, Matrix, Vector

VERSION = 1
"""Of the filter: members that replay releases must do the same arithmetic."""

BANK = ((0.03, 0.05), (0.03, 0.4), (0.15, 0.15), (0.4, 0.4))
"""Prior deviations of S̃ and of m̃, filter by filter."""

FIRST_WEIGHTS = (1.0, 0.0, 0.0, 0.0)
"""Log weights: the first filter hardly learns, and is believed until releases speak against it."""

NUISANCE = 0.05
"""Prior deviation of log v."""

SAMPLING, MODEL_ERROR, SPREAD_OF_VISITS = 1.5, 0.4, 0.8
"""Inflation of the sampling error; measurement error as a share of F; T times what E[Ω ⊗ Ω] is beyond
Ω̄ ⊗ Ω̄."""

INFORMATION_ERROR = 0.3
"""Deviation of the public model of E[Ω], as a share of its mean eigenvalue."""

LEAST_INFORMATION, MOST_INFORMATION = 0.04, 0.98
LEAST_COVARIANCE, MOST_COVARIANCE = 0.1, 12.0
"""Eigenvalues: of Ω̄ (the least as a share of their mean), and of S̃."""

GATE = 6.0
"""An innovation that all filters find more deviations too large than this is scaled down to it."""

PACE_DRIFT, PACE_ERROR, PACE_MOST = 0.1, 0.25, 5.0
"""Visits relative to the plan: drift of their logarithm from slot to slot, error of what one release
says of it, largest factor."""


@dataclass(frozen=True)
class Slot:
    """One release as the plan has it: T_r visits per user, after `past` ones; clip norm and noise.

    `noise` is the deviation of the noise in every entry of the sum.
    """

    visits: float
    clip: float
    noise: float
    past: float = 0.0


class FilterState(NamedTuple):
    """Everything that releases have said.

    `mean` and `covariance` are those of (x, e), filter by filter; `counted` has a row for each release:
    users with data, the precision of that number, and planned and past visits; `pace` is mean and
    variance of the logarithm of ρ, by which visits differ from the plan; `held` is the information in
    the last release, `surprise` what the gate looks at.
    """

    mean: Floats
    covariance: Floats
    log_weights: Vector
    counted: Floats
    pace: Vector
    population: Population
    held: float
    surprise: float


class Measurement(NamedTuple):
    """A release in the filter's terms: ỹ, F with its column of log v, F⁻¹, and the noise N."""

    slopes: Vector
    matrix: Matrix
    inverse: Matrix
    noise: Matrix


@lru_cache(maxsize=16)
def triangle(dim: int) -> tuple[Indices, Indices, Vector]:
    """Rows, columns and scales of svec."""
    rows, columns = np.triu_indices(dim)
    return rows, columns, np.where(rows == columns, 1.0, sqrt(2.0))


def svec(matrix: Matrix) -> Vector:
    rows, columns, scale = triangle(len(matrix))
    return np.asarray(scale * matrix[rows, columns], dtype=np.float64)


def smat(vector: Vector, dim: int) -> Matrix:
    """The inverse of `svec`."""
    rows, columns, scale = triangle(dim)
    matrix = np.empty((dim, dim))
    matrix[rows, columns] = matrix[columns, rows] = vector / scale
    return matrix


def symmetric_product(matrix: Matrix) -> Matrix:
    """M ⊗ₛ M, which takes svec(X) to svec(MXMᵀ)."""
    rows, columns, scale = triangle(len(matrix))
    straight = matrix[np.ix_(rows, rows)] * matrix[np.ix_(columns, columns)]
    crossed = matrix[np.ix_(rows, columns)] * matrix[np.ix_(columns, rows)]
    return np.asarray(np.outer(scale, scale) * (straight + crossed) / 2.0, dtype=np.float64)


def first_state(dim: int) -> FilterState:
    """Nothing was released: the public start."""
    size = dim + dim * (dim + 1) // 2
    mean, covariance = np.zeros((len(BANK), 2 * size + 1)), np.zeros((len(BANK), 2 * size + 1))
    mean[:, dim:size] = svec(np.eye(dim))
    for row, (of_s, of_mean) in zip(covariance, BANK, strict=True):
        row[:dim], row[dim:size], row[size] = of_mean**2, of_s**2, NUISANCE**2
    return FilterState(
        mean=mean,
        covariance=np.stack([np.diag(row) for row in covariance]),
        log_weights=np.array(FIRST_WEIGHTS),
        counted=np.zeros((0, 4)),
        pace=np.array([0.0, 1.0]),
        population=Population.start(dim),
        held=0.0,
        surprise=0.0,
    )


def number_of_users(counted: Floats, pace: float) -> float:
    """n̂ = Σ(yg/s²)/Σ(g²/s²), at least one deviation of it: noise must not make users vanish.

    g is the share of users who have data at this pace of visits.
    """
    information = total = 0.0
    for seen, precision, visits, past in counted:
        share = present(pace * visits, past)
        total += precision * share * seen
        information += precision * share**2
    return max(1.0, total / information, 1.0 / sqrt(information))


def pace_of(state: FilterState) -> float:
    """ρ: visits as a multiple of those that were planned."""
    return float(np.exp(np.clip(state.pace[0], -log(PACE_MOST), log(PACE_MOST))))


def learn(state: FilterState, slot: Slot, release: Vector, model: PublicModel) -> FilterState:
    """One release, in the units of contributions, moves the bank and the public point."""
    with one_thread():
        counted, pace = _follow_visits(state, slot, release, model)
        state = state._replace(counted=counted, pace=pace)
        visits = slot.visits * pace_of(state)
        users = number_of_users(counted, pace_of(state)) * present(visits, slot.past)
        held = expected_information(model, state.population, visits, slot.past)
        information = _information(release, slot, users, held)
        measured = _measure(state.population, release, slot, users, visits + slot.past, information)
        return _condition(state, measured, users * float(np.trace(held)))


def _follow_visits(
    state: FilterState, slot: Slot, release: Vector, model: PublicModel
) -> tuple[Vector, Vector]:
    """How many users have data, and how often they come beside the plan.

    The released trace of Σ Ω tells how many visits they have made: T̂ solves n̂·present(T)·tr E[Ω](T) =
    trace, and log(T̂/T_r) is one noisy measurement of log ρ. Items that are shown because they are liked
    tell less than isotropic ones, so ρ is the pace of information rather than of visits.
    """
    pace, unit = state.pace + np.array([0.0, PACE_DRIFT**2]), COUNT_WEIGHT * slot.clip
    seen = float(release[-1]) / unit, (unit / slot.noise) ** 2, slot.visits, slot.past
    counted, d = np.vstack([state.counted, seen]), model.dim
    users = number_of_users(counted, pace_of(state))

    def trace(log_pace: float) -> float:
        at = slot.visits * float(np.exp(log_pace))
        told = expected_information(model, state.population, at, slot.past)
        return users * present(at, slot.past) * float(np.trace(told))

    size = d + d * (d + 1) // 2
    wanted = float(np.trace(smat(release[size:-1], d))) / INFORMATION_WEIGHT
    low, high = -log(PACE_MOST), log(PACE_MOST)
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if trace(middle) < wanted else (low, middle)
    found = 0.5 * (low + high)
    slope = (trace(found + 0.05) - trace(found - 0.05)) / 0.1
    noise = sqrt(d) * slot.noise / INFORMATION_WEIGHT
    doubt = (noise / max(slope, 1e-9)) ** 2 + PACE_ERROR**2
    gain = pace[1] / (pace[1] + doubt)
    return counted, np.array([pace[0] + gain * (found - pace[0]), (1.0 - gain) * pace[1]])


def _information(release: Vector, slot: Slot, users: float, expected: Matrix) -> Matrix:
    """Ω̄ of a user with data: the public model, corrected by what was released of it."""
    d = len(expected)
    size = d + d * (d + 1) // 2
    released, public = smat(release[size:-1], d) / INFORMATION_WEIGHT, users * expected
    spread = INFORMATION_ERROR * float(np.trace(public)) / d
    gain = spread**2 / (spread**2 + (slot.noise / INFORMATION_WEIGHT) ** 2)
    values, U = np.linalg.eigh((public + gain * (released - public)) / users)
    mean = max(float(values.mean()), LEAST_INFORMATION * float(np.trace(expected)) / d)
    values = np.clip(values, LEAST_INFORMATION * mean, MOST_INFORMATION)
    return np.asarray((U * values) @ U.T, dtype=np.float64)


def _measure(
    population: Population,
    release: Vector,
    slot: Slot,
    users: float,
    visits: float,
    information: Matrix,
) -> Measurement:
    d = len(information)
    size = d + d * (d + 1) // 2
    whitened = np.zeros((size, size + 1))
    whitened[:d, :d] = users * information
    curvature = 0.5 * users * (1.0 + SPREAD_OF_VISITS / visits)
    whitened[d:, d:size] = curvature * symmetric_product(information)
    whitened[d:, size] = 0.5 * users * svec(information - information @ information)
    jacobian, unweighted = np.zeros((size + 1, size + 1)), np.ones(size)
    inverse = np.asarray(np.linalg.inv(np.linalg.cholesky(population.covariance)), np.float64)
    jacobian[:d, :d], jacobian[d:size, d:size] = inverse, symmetric_product(inverse)
    jacobian[size, size] = 1.0
    unweighted[:d] = 1.0 / MEAN_WEIGHT
    rows = jacobian[:size, :size].T
    matrix = rows @ whitened @ jacobian
    back = np.asarray(np.linalg.inv(matrix[:, :size]), np.float64)
    noise = (rows * (slot.noise * unweighted) ** 2) @ rows.T
    return Measurement(rows @ (unweighted * release[:size]), matrix, _even(back), _even(noise))


def _even(matrix: Matrix) -> Matrix:
    return np.asarray(0.5 * (matrix + matrix.T), dtype=np.float64)


def _condition(state: FilterState, measured: Measurement, held: float) -> FilterState:
    """A Kalman step of every filter, the gate, and the next public point."""
    d, size = len(state.population.mean), len(measured.slopes)
    share = min(1.0, state.held / held)
    keep, old = np.ones(2 * size + 1), np.repeat([share, share**2], [d, size - d])
    keep[size + 1 :], new = old, np.sqrt(1.0 - old)
    fresh = SAMPLING * new[:, None] * measured.inverse * new
    H = np.hstack([measured.matrix, measured.matrix[:, :size]])
    at = np.concatenate([state.population.mean, svec(state.population.covariance)])
    error = measured.noise + MODEL_ERROR * _even(measured.matrix[:, :size])
    means, covariances, gains, innovations, fits, volumes = [], [], [], [], [], []
    for mean, covariance in zip(state.mean, state.covariance, strict=True):
        mean, covariance = keep * mean, keep[:, None] * covariance * keep
        covariance[size + 1 :, size + 1 :] += fresh
        across = covariance @ H.T
        V = _even(H @ across + error)
        innovation = measured.slopes + measured.matrix[:, :size] @ at - H @ mean
        gain = np.linalg.solve(V, across.T).T
        fits.append(float(innovation @ np.linalg.solve(V, innovation)))
        volumes.append(float(np.linalg.slogdet(V)[1]))
        means.append(mean)
        covariances.append(_even(covariance - gain @ across.T))
        gains.append(gain)
        innovations.append(innovation)
    surprise = (min(fits) - size) / sqrt(2.0 * size)
    damp = sqrt((size + GATE * sqrt(2.0 * size)) / min(fits)) if surprise > GATE else 1.0
    moved = [m + damp * g @ i for m, g, i in zip(means, gains, innovations, strict=True)]
    logs = state.log_weights - 0.5 * (damp**2 * np.array(fits) + np.array(volumes))
    state = state._replace(
        mean=np.stack(moved),
        covariance=np.stack(covariances),
        log_weights=np.asarray(logs - logs.max(), dtype=np.float64),
        held=held,
        surprise=surprise,
    )
    return state._replace(population=_public(state, d))


def equivalent_users(state: FilterState) -> float:
    """n₀ = 2p/tr P, P the bank's covariance of svec S̃, which has p entries.

    So many users whose tastes were known would tell S̃ = I as well: their estimate has covariance 2I/n.
    """
    d = len(state.population.mean)
    size = d + d * (d + 1) // 2
    weights = np.exp(state.log_weights - state.log_weights.max())
    weights = weights / weights.sum()
    means = state.mean[:, d:size]
    apart = means - weights @ means
    within = np.trace(state.covariance[:, d:size, d:size], axis1=1, axis2=2)
    return 2.0 * (size - d) / float(weights @ (within + (apart**2).sum(axis=1)))


def _public(state: FilterState, d: int) -> Population:
    """The bank's weighted mean: |m̃| at most √d, eigenvalues of S̃ within their bounds."""
    weights = np.exp(state.log_weights - state.log_weights.max())
    x = weights @ state.mean / weights.sum()
    size = d + d * (d + 1) // 2
    length = float(np.linalg.norm(x[:d]))
    values, U = np.linalg.eigh(smat(x[d:size], d))
    values = np.clip(values, LEAST_COVARIANCE, MOST_COVARIANCE)
    return Population(x[:d] * min(1.0, sqrt(d) / max(length, 1e-300)), _even((U * values) @ U.T))


def is_public(population: Population, tolerance: float) -> bool:
    """Is a finite population within the bounds of a public point, up to rounding?"""
    mean, covariance = population
    values = np.linalg.eigvalsh(covariance)
    within = LEAST_COVARIANCE - tolerance <= values[0] and values[-1] <= MOST_COVARIANCE + tolerance
    return bool(within and np.linalg.norm(mean) <= sqrt(len(mean)) + tolerance)
