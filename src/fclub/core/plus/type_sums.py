"""What a server's users add up to by type: all that is needed to learn the types, and all that leaves.

Its size depends on the number of types and the dimension, not on the number of users.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.plus.type_model import (
    TypeModel,
    Work,
    learn_row,
    make_work,
    own_share,
    quadratic,
    row_length,
    weigh_types,
)
from fclub.core.statistics import Packed
from fclub.core.types import Floats, Indices, Matrix, Vector

PEOPLE, RESIDUAL, VISITS, OWN, OWN_INFORMATION, WITHIN, WITHIN_INFORMATION = range(7)
"""Places in `TypeSums.scalars`: users with data, squared residuals expected of all observations, their
number, and slope and information of the log evidence in logit(own) and in log ω, where W = ωS."""

LEAST_SHARE = 0.02
"""A user says nothing of the spread within a type that it belongs to with less probability."""


class TypeSums(NamedTuple):
    """Sums over users with their probabilities of each type, and over users as they are.

    By type: `users`, their `visits`, and their `rows` (`type_model`). With θ̂ and B, the mean and the
    covariance of a user's vector if it is of its own: `first` Σθ̂, `second` Σθ̂θ̂ᵀ, `left` ΣB.
    """

    users: Floats
    visits: Floats
    rows: Floats
    first: Floats
    second: Floats
    left: Floats
    scalars: Floats

    @staticmethod
    def zeros(types: int, dim: int) -> TypeSums:
        return TypeSums(
            users=np.zeros(types),
            visits=np.zeros(types),
            rows=np.zeros((types, row_length(dim))),
            first=np.zeros(dim),
            second=np.zeros((dim, dim)),
            left=np.zeros((dim, dim)),
            scalars=np.zeros(7),
        )

    def plus(self, other: TypeSums) -> TypeSums:
        """What two servers add up to."""
        return TypeSums(*(a + b for a, b in zip(self, other, strict=True)))


class Known(NamedTuple):
    """What the data of the `people` (rows of users with data) say: their rows, and some numbers each.

    `own` is the log evidence for a vector of one's own against the types' constant; `trace` and
    `square` are tr WQ_w and tr (WQ_w)².
    """

    people: Indices
    rows: Floats
    own: Floats
    trace: Floats
    square: Floats
    visits: Floats


@compiled
def know_users(
    model: TypeModel, mean: Vector, users: Packed, squares: Floats, people: Indices, sums: TypeSums
) -> Known:
    """The rows of these users; adds what concerns the population, N(mean, S), to `sums`."""
    count, d = people.shape[0], mean.shape[0]
    work = make_work(d)
    known = Known(
        people,
        np.empty((count, work.row.shape[0])),
        np.empty(count),
        np.empty(count),
        np.empty(count),
        np.empty(count),
    )
    for a in range(count):
        u = people[a]
        known.own[a] = learn_row(model, 0, users.gram[u], users.moment[u], work)
        known.rows[a] = work.row
        trace, square = float(d), float(d)
        for i in range(d):
            trace -= work.pull[i, i]
            square -= 2.0 * work.pull[i, i]
            for j in range(d):
                square += work.pull[i, j] * work.pull[j, i]
        known.trace[a], known.square[a] = trace, square
        known.visits[a] = float(users.counts[u])
        _count_in(model, users.gram[u], users.moment[u], squares[u], work, sums)
    sums.scalars[PEOPLE] += float(count)
    sums.scalars[VISITS] += known.visits.sum()
    return known


@inner
def _count_in(
    model: TypeModel, gram: Matrix, moment: Vector, square: float, work: Work, sums: TypeSums
) -> None:
    """Add a user to the population; its residuals are those expected under N(θ̂, B)."""
    d, B = moment.shape[0], work.single
    theta = np.zeros(d)
    for j in range(d):
        pull = work.vector[j] + model.vector[0, j]
        for i in range(d):
            theta[i] += B[j, i] * pull
    residual = square
    for i in range(d):
        sums.first[i] += theta[i]
        inside = 0.0
        for j in range(d):
            second = theta[i] * theta[j]
            sums.second[i, j] += second
            sums.left[i, j] += B[i, j]
            inside += gram[i, j] * (second + B[i, j])
        residual += inside - 2.0 * moment[i] * theta[i]
    sums.scalars[RESIDUAL] += residual


@compiled
def sum_types(
    model: TypeModel, known: Known, centres: Floats, within: Matrix, own: float, sums: TypeSums
) -> None:
    """Add every user to its types, in proportion to their probabilities, and to the slopes.

    Types are fitted to everybody: a user's probabilities are given that it is of some type. How many
    are of none, `own`, is learned beside.
    """
    types, d = centres.shape
    weights, rest = np.empty(types), np.empty(d)
    for a in range(known.people.shape[0]):
        row = known.rows[a]
        single = own_share(known.own[a], weigh_types(model, 0, row, weights))
        sums.scalars[OWN] += single - own
        sums.scalars[OWN_INFORMATION] += (single - own) * (single - own)
        for k in range(types):
            weight = weights[k]
            sums.users[k] += weight
            sums.visits[k] += weight * known.visits[a]
            for place in range(row.shape[0]):
                sums.rows[k, place] += weight * row[place]
            share = weight * (1.0 - single)
            if share > LEAST_SHARE:
                _residual(row, centres[k], rest)
                excess = quadratic(within, rest) - known.trace[a]
                sums.scalars[WITHIN] += 0.5 * share * excess
                sums.scalars[WITHIN_INFORMATION] += 0.5 * share * known.square[a]


@inner
def _residual(row: Vector, centre: Vector, out: Vector) -> None:
    """e = q_w − Q_w c."""
    d = centre.shape[0]
    for i in range(d):
        out[i] = row[i]
    place = d
    for i in range(d):
        out[i] -= row[place] * centre[i]
        place += 1
        for j in range(i + 1, d):
            half = 0.5 * row[place]
            out[i] -= half * centre[j]
            out[j] -= half * centre[i]
            place += 1
