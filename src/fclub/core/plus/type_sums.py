"""What a server's users add up to by type: all that is needed to learn the types, and all that leaves.

Its size depends on the number of types and the dimension, not on the number of users.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import beside, compiled, inner
from fclub.core.kernels import add_matrix, log_determinant, product, set_vector, trace
from fclub.core.plus.type_model import (
    TypeModel,
    Work,
    learn_row,
    make_work,
    row_length,
)
from fclub.core.statistics import Packed
from fclub.core.types import Floats, Indices, Matrix, Vector

PEOPLE, RESIDUAL, VISITS, OWN, OWN_INFORMATION, WITHIN, WITHIN_INFORMATION, LOGIT, SPREAD = range(9)
"""Places in `TypeSums.scalars`: users with data, squared residuals expected of all observations, their
number, slope and information of the log evidence in logit(own) and in log ω, where W = ωS, and for
every user these two as its server believes them to be."""


class TypeSums(NamedTuple):
    """Sums over users with their probabilities of each type, and over users as they are.

    By type: `users`, their `visits`, and their `rows` (`type_model`). Of the population, with
    (Q_S, q_S) a user's row if W were S and z = q_S − Q_S μ: `slope` Σz, `second` Σzzᵀ, `information`
    ΣQ_S, and μ and S of every user as its server believes them to be, `mean` and `covariance`. So
    servers agree in the end though each takes its slopes where it is.
    """

    users: Floats
    visits: Floats
    rows: Floats
    slope: Floats
    second: Floats
    information: Floats
    mean: Floats
    covariance: Floats
    scalars: Floats

    @staticmethod
    def zeros(types: int, dim: int) -> TypeSums:
        return TypeSums(
            users=np.zeros(types),
            visits=np.zeros(types),
            rows=np.zeros((types, row_length(dim))),
            slope=np.zeros(dim),
            second=np.zeros((dim, dim)),
            information=np.zeros((dim, dim)),
            mean=np.zeros(dim),
            covariance=np.zeros((dim, dim)),
            scalars=np.zeros(9),
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


@beside
def know_users(
    model: TypeModel, users: Packed, squares: Floats, people: Indices, sums: TypeSums
) -> Known:
    """The rows of these users; adds what concerns the population to `sums`.

    `information` holds ΣB until all users are known: `inform` makes ΣQ_S of it. So the sums are the
    same bit for bit whether users are taken all at once or in parts, one after the other.
    """
    count, d = people.shape[0], users.moment.shape[1]
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
        set_vector(known.rows[a], work.row)
        trace, square = float(d), float(d)
        for i in range(d):
            trace -= work.pull[i, i]
            square -= 2.0 * work.pull[i, i]
            for j in range(d):
                square += work.pull[i, j] * work.pull[j, i]
        known.trace[a], known.square[a] = trace, square
        known.visits[a] = float(users.counts[u])
        _count_in(model, users.gram[u], users.moment[u], squares[u], work, sums)
        add_matrix(sums.information, work.single, 1.0)
        sums.scalars[PEOPLE] += 1.0
        sums.scalars[VISITS] += known.visits[a]
    return known


@inner
def _count_in(
    model: TypeModel, gram: Matrix, moment: Vector, square: float, work: Work, sums: TypeSums
) -> None:
    """Add a user to the population, where θ ~ N(θ̂, B) given its data and z = q − Qθ̂."""
    d, B = moment.shape[0], work.single
    theta, z = np.zeros(d), np.empty(d)
    for j in range(d):
        pull = work.vector[j] + model.vector[0, j]
        for i in range(d):
            theta[i] += B[j, i] * pull
    residual = square
    for i in range(d):
        z[i], inside = work.vector[i], 0.0
        for j in range(d):
            z[i] -= work.information[i, j] * theta[j]
            inside += gram[i, j] * (theta[i] * theta[j] + B[i, j])
        residual += inside - 2.0 * moment[i] * theta[i]
    for i in range(d):
        sums.slope[i] += z[i]
        for j in range(d):
            sums.second[i, j] += z[i] * z[j]
    sums.scalars[RESIDUAL] += residual


@compiled
def inform(model: TypeModel, sums: TypeSums) -> None:
    """ΣQ_S = nS⁻¹ − S⁻¹(ΣB)S⁻¹, once all users are known."""
    d, precision = sums.mean.shape[0], model.precision[0]
    half, whole = np.empty((d, d)), np.empty((d, d))
    product(sums.information, precision, half)
    product(precision, half, whole)
    for i in range(d):
        for j in range(d):
            both = 0.5 * (whole[i, j] + whole[j, i])
            sums.information[i, j] = sums.scalars[PEOPLE] * precision[i, j] - both


@inner
def residual(row: Vector, centre: Vector, out: Vector) -> None:
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


@compiled
def are_possible(sums: TypeSums, most: float, slack: float) -> bool:
    """Can these be sums over users with at most so many visits?

    All numbers are finite, counts are not negative and fit each other, matrices are what sums of
    positive ones can be; `slack` is for rounding, in proportion.
    """
    people, observed = sums.scalars[PEOPLE], sums.scalars[VISITS]
    users, visits, d = 0.0, 0.0, sums.mean.shape[0]
    if not 0.0 <= people <= observed * (1.0 + slack) <= most:
        return False
    matrix = np.empty((d, d))
    for k in range(sums.rows.shape[0]):
        if not (sums.users[k] >= 0.0 and sums.visits[k] >= 0.0):
            return False
        users += sums.users[k]
        visits += sums.visits[k]
        place = d
        for i in range(d):
            matrix[i, i] = sums.rows[k, place]
            place += 1
            for j in range(i + 1, d):
                matrix[i, j] = 0.5 * sums.rows[k, place]
                matrix[j, i] = matrix[i, j]
                place += 1
        if not is_definite(matrix, slack, trace(matrix)):
            return False
    if abs(users - people) > slack * (1.0 + people) or abs(visits - observed) > slack * (
        1.0 + observed
    ):
        return False
    if sums.scalars[OWN_INFORMATION] < 0.0 or sums.scalars[WITHIN_INFORMATION] < 0.0:
        return False
    return (
        is_definite(sums.second.copy(), slack, trace(sums.second))
        and is_definite(sums.information.copy(), slack, trace(sums.information))
        and is_definite(sums.covariance.copy(), slack, trace(sums.covariance))
    )


@inner
def is_definite(matrix: Matrix, slack: float, scale: float) -> bool:
    """Up to rounding in proportion to the `scale` of its entries; changes the matrix."""
    least = slack * (1.0 + abs(scale))
    for i in range(matrix.shape[0]):
        matrix[i, i] += least
    return log_determinant(matrix) > -np.inf
