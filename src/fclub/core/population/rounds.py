"""Rounds of users who are served from two populations: the public start, and the released one.

Given m, P = S⁻¹ and a user's data, with h = b/v + Pm and B = (G/v + P)⁻¹, the taste is N(Bh, B) and

    l(m, S) = ½hᵀBh − ½mᵀPm − ½ log det(I + SG/v)

is the log marginal likelihood up to what both have in common. The odds of the public start against the
released population are those of the evidence: of the user's own, and of its server's users together
where that is allowed. A false population is believed only as far as data support it.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import choose, invert
from fclub.core.population.model import VARIANCE, Population, PublicModel
from fclub.core.statistics import Packed, observe
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector

START_WEIGHT = 0.1
"""w0: prior probability of the public start beside a released population."""

PRIOR_ODDS = log(START_WEIGHT / (1.0 - START_WEIGHT))

LOOKS = 1.21
"""Growth of a server's visits until its users are asked again which population they support."""

MOST_ASKED = 2048
"""Users of a server who are asked, those who came first: so many leave no doubt."""

SURE = 40.0
"""Log odds beyond which one of two populations serves alone."""


class Prior(NamedTuple):
    """A population as serving needs it: P, Pm, and mᵀPm + log det S."""

    precision: Matrix
    vector: Vector
    constant: float


class PopulationRound(NamedTuple):
    """Users of one server or of many, and both populations.

    Server s has the rows `first[s]` to `first[s + 1]`, and `server_of` is the server of a row. By
    server: log `odds` of the public start, its `visits`, and the number of visits at which the odds are
    `due` again, 0 where each user decides for itself.
    """

    users: Packed
    row_of: Indices
    server_of: Indices
    first: Indices
    start: Prior
    released: Prior
    odds: Floats
    visits: Counts
    due: Counts
    exploration: float
    centre: float


def prior_of(model: PublicModel, population: Population) -> Prior:
    """In the units of features."""
    unit = model.unit
    covariance = population.covariance * np.outer(unit, unit)
    mean = unit * population.mean
    inverse = np.asarray(np.linalg.inv(covariance), np.float64)
    precision = np.ascontiguousarray(0.5 * (inverse + inverse.T))
    constant = float(mean @ precision @ mean + np.linalg.slogdet(covariance)[1])
    return Prior(precision, precision @ mean, constant)


@inner
def _posterior(
    prior: Prior, gram: Matrix, moment: Vector, room: Matrix, mean: Vector, covariance: Matrix
) -> float:
    """Write Bh and B; returns l(m, S)."""
    d = moment.shape[0]
    for i in range(d):
        for j in range(d):
            room[i, j] = prior.precision[i, j] + gram[i, j] / VARIANCE
    volume = invert(room, covariance)
    fit = 0.0
    for i in range(d):
        total = 0.0
        for j in range(d):
            total += covariance[i, j] * (prior.vector[j] + moment[j] / VARIANCE)
        mean[i] = total
        fit += total * (prior.vector[i] + moment[i] / VARIANCE)
    return 0.5 * (fit - prior.constant - volume)


@compiled
def share_of(odds: float) -> float:
    """The probability of what has these log odds."""
    return 1.0 / (1.0 + exp(-max(-SURE, min(SURE, odds))))


@compiled
def mix(share: float, first: Vector, inside: Matrix, mean: Vector, covariance: Matrix) -> None:
    """Write mean and covariance of a taste that is of the first kind with probability `share`."""
    d = mean.shape[0]
    for i in range(d):
        for j in range(d):
            between = share * (1.0 - share) * (first[i] - mean[i]) * (first[j] - mean[j])
            covariance[i, j] += share * (inside[i, j] - covariance[i, j]) + between
    for i in range(d):
        mean[i] += share * (first[i] - mean[i])


@compiled
def serve(
    start: Prior,
    released: Prior,
    odds: float,
    gram: Matrix,
    moment: Vector,
    mean: Vector,
    covariance: Matrix,
) -> None:
    """Write mean and covariance of a user's taste under both populations together.

    `odds` is the logarithm of the odds of the public start before this user's own data are looked at.
    """
    d = moment.shape[0]
    room, first, other = np.empty((d, d)), np.empty(d), np.empty((d, d))
    if odds < -SURE:
        _posterior(released, gram, moment, room, mean, covariance)
        return
    evidence = odds + _posterior(start, gram, moment, room, first, other)
    evidence -= _posterior(released, gram, moment, room, mean, covariance)
    mix(share_of(evidence), first, other, mean, covariance)


@compiled
def evidence_for_start(start: Prior, released: Prior, users: Packed, first: int, last: int) -> float:
    """Σ over users from row `first` to before `last` of l(0, D²) − l(m, S)."""
    d, total = users.moment.shape[1], 0.0
    room, mean, covariance = np.empty((d, d)), np.empty(d), np.empty((d, d))
    for u in range(first, last):
        if users.counts[u] > 0:
            gram, moment = users.gram[u], users.moment[u]
            total += _posterior(start, gram, moment, room, mean, covariance)
            total -= _posterior(released, gram, moment, room, mean, covariance)
    return total


@compiled
def recommend(state: PopulationRound, user: int, items: Matrix) -> int:
    """argmax of the mean of θᵀx plus `exploration` deviations; no reward is larger than 1."""
    row, d = state.row_of[user], items.shape[1]
    mean, covariance = np.empty(d), np.empty((d, d))
    own = state.users.gram[row], state.users.moment[row]
    serve(state.start, state.released, state.odds[state.server_of[row]], *own, mean, covariance)
    return choose(items, mean, covariance, state.exploration, 1.0 - state.centre)


@compiled
def feedback(state: PopulationRound, user: int, x: Vector, y: float) -> None:
    """Keep the observation; ask the server's users for their evidence where it is due."""
    row = state.row_of[user]
    observe(state.users, row, x, y - state.centre)
    count_visit(state, state.server_of[row])


@compiled
def count_visit(state: PopulationRound, server: int) -> None:
    state.visits[server] += 1
    if 0 < state.due[server] <= state.visits[server]:
        ask_users(state, server)


@compiled
def ask_users(state: PopulationRound, server: int) -> None:
    """Weigh both populations by the data of the server's users together."""
    first, last = state.first[server], state.first[server + 1]
    last = min(last, first + MOST_ASKED)
    evidence = evidence_for_start(state.start, state.released, state.users, first, last)
    state.odds[server] = PRIOR_ODDS + evidence
    visits = state.visits[server]
    state.due[server] = max(visits + 1, int(visits * LOOKS))
