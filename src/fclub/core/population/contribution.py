"""What one user adds to a release of the population: whole numbers of bounded norm, from its own data.

With G = Σxxᵀ and b = Σyx of a user, the public point (m, S = RRᵀ) and the public reward variance v,

    Gw = RᵀGR/v,   A = (I + Gw)⁻¹,   Ω = I − A,   z = A(Rᵀb/v − Gw R⁻¹m),

z and ½(zzᵀ − Ω) are the slopes of the user's log marginal likelihood in m and S, in units in which
S = I: their expectation is zero at the truth, whatever was shown to the user. Ω is the share of the
prior's variance that the user's data have taken away. A contribution is

    [a·z, svec(½(zzᵀ − Ω)), w·svec(Ω)], its norm clipped to C, and a count of c·C.

svec takes the upper triangle row by row and multiplies entries off the diagonal by √2, so that the
norm of a symmetric matrix is the Frobenius norm.
"""

from __future__ import annotations

from math import isfinite, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import beside, inner
from fclub.core.kernels import invert
from fclub.core.plus.type_model import TypeModel, learn_row, make_work, weigh_types
from fclub.core.plus.type_sums import residual
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats, Matrix, Vector

MOST = 1e9
"""Larger entries than this are no sums of observations: such a user adds nothing."""

MEAN_WEIGHT, INFORMATION_WEIGHT, COUNT_WEIGHT = 0.3, 0.2, 0.3
"""a, w and c."""

TYPES = 20
RESIDUAL_WEIGHT, SHARE_WEIGHT = 0.7, 0.3
"""Types that are released, β and γ."""

LEAST_SHARE = 1e-3
"""A user adds nothing to a type that it belongs to with less probability."""

_ROOT_2 = sqrt(2.0)


class PublicPoint(NamedTuple):
    """Where slopes are taken: R (lower triangular), R⁻¹m and v. All of it was released or is public."""

    root: Matrix
    mean: Vector
    variance: float


class Room(NamedTuple):
    """For one user's matrices and numbers."""

    product: Matrix
    shifted: Matrix
    inverse: Matrix
    vector: Vector
    slope: Vector
    values: Vector
    whole: Counts


def release_length(dim: int, types: bool = False) -> int:
    """Entries of a release: mean, slope in S, information, count; of `types`, residuals, shares, count.

    A plan that has both uses the larger number in all its slots.
    """
    population = dim + dim * (dim + 1) + 1
    return max(population, TYPES * (dim + 1) + 1) if types else population


@inner
def _make_room(d: int) -> Room:
    matrices, vectors, length = np.empty((3, d, d)), np.empty((2, d)), d + d * (d + 1)
    whole = np.zeros(length, dtype=np.int64)
    parts = matrices[0], matrices[1], matrices[2], vectors[0], vectors[1]
    return Room(*parts, np.empty(length), whole)


@inner
def _are_sums(gram: Matrix, moment: Vector) -> bool:
    """Can these be sums of observations, as far as arithmetic needs it?"""
    for i in range(moment.shape[0]):
        if not abs(moment[i]) <= MOST:
            return False
        for j in range(moment.shape[0]):
            if not abs(gram[i, j]) <= MOST:
                return False
    return True


@inner
def _slopes(point: PublicPoint, gram: Matrix, moment: Vector, room: Room) -> bool:
    """Write I + Gw, A and z; False if there is no A."""
    d, root, v = moment.shape[0], point.root, point.variance
    for i in range(d):
        for j in range(d):
            total = 0.0
            for k in range(j, d):
                total += gram[i, k] * root[k, j]
            room.product[i, j] = total
    for i in range(d):
        for j in range(i + 1):
            total = 0.0
            for k in range(i, d):
                total += root[k, i] * room.product[k, j]
            room.shifted[i, j] = room.shifted[j, i] = total / v
    for i in range(d):
        total = 0.0
        for k in range(i, d):
            total += root[k, i] * moment[k]
        total /= v
        for j in range(d):
            total -= room.shifted[i, j] * point.mean[j]
        room.vector[i] = total
    for i in range(d):
        room.shifted[i, i] += 1.0
    if not isfinite(invert(room.shifted, room.inverse)):
        return False
    for i in range(d):
        total = 0.0
        for j in range(d):
            total += room.inverse[i, j] * room.vector[j]
        room.slope[i] = total
    return True


@inner
def _write(room: Room) -> float:
    """Write the contribution before it is clipped; returns its norm."""
    d, z, values = room.slope.shape[0], room.slope, room.values
    triangle, place, square = d * (d + 1) // 2, d, 0.0
    for i in range(d):
        values[i] = MEAN_WEIGHT * z[i]
    for i in range(d):
        for j in range(i, d):
            taken = (1.0 if i == j else 0.0) - room.inverse[i, j]
            scale = 1.0 if i == j else _ROOT_2
            values[place] = 0.5 * scale * (z[i] * z[j] - taken)
            values[place + triangle] = INFORMATION_WEIGHT * scale * taken
            place += 1
    for place in range(values.shape[0]):
        square += values[place] * values[place]
    return sqrt(square)


@inner
def _make_whole(norm: float, most: float, steps: int, values: Vector, out: Counts) -> bool:
    """Scale to norm `most` = `steps` lattice steps at most, round towards zero; False if that fails.

    Entries are compared before they become whole numbers, and the sum of squares stops growing as soon
    as it is too large: nothing can wrap.
    """
    factor = steps / max(norm, most)
    square, limit = 0, steps * steps
    for place in range(values.shape[0]):
        value = values[place] * factor
        if not abs(value) <= steps:
            return False
        whole = int(value)
        out[place] = whole
        square += whole * whole
        if square > limit:
            return False
    return True


@inner
def _encode(
    point: PublicPoint, gram: Matrix, moment: Vector, visits: int, most: float, steps: int, room: Room
) -> bool:
    """Fill `room.whole`; False: the user adds nothing."""
    if visits == 0 or not _are_sums(gram, moment) or not _slopes(point, gram, moment, room):
        return False
    return _make_whole(_write(room), most, steps, room.values, room.whole)


@beside
def add_contributions(
    point: PublicPoint, users: Packed, most: float, steps: int, count: int, total: Counts
) -> None:
    """Add every user's contribution, of norm at most `most` = `steps` lattice steps, and its `count`.

    Users are taken one by one, so that no user's numbers depend on how many others there are.
    """
    room, last = _make_room(point.mean.shape[0]), total.shape[0] - 1
    for u in range(users.counts.shape[0]):
        if _encode(point, users.gram[u], users.moment[u], users.counts[u], most, steps, room):
            for place in range(room.whole.shape[0]):
                total[place] += room.whole[place]
            total[last] += count


@inner
def _write_types(root: Matrix, centres: Floats, row: Vector, weights: Vector, values: Vector) -> float:
    """Write [β w_k Rᵀe_k, γ w_k] for every type; returns the norm."""
    types, d = centres.shape
    rest, place, square = np.empty(d), 0, 0.0
    for k in range(types):
        weight = 0.0 if weights[k] < LEAST_SHARE else weights[k]
        if weight > 0.0:
            residual(row, centres[k], rest)
        for i in range(d):
            total = 0.0
            if weight > 0.0:
                for j in range(i, d):
                    total += root[j, i] * rest[j]
            values[place] = RESIDUAL_WEIGHT * weight * total
            place += 1
        values[place] = SHARE_WEIGHT * weight
        place += 1
    for place in range(values.shape[0]):
        square += values[place] * values[place]
    return sqrt(square)


@beside
def add_type_contributions(
    model: TypeModel,
    root: Matrix,
    centres: Floats,
    users: Packed,
    most: float,
    steps: int,
    count: int,
    total: Counts,
) -> None:
    """The same of types: `model` and `centres` were released, R is the frame of the population."""
    types, d = centres.shape
    work, weights, last = make_work(d), np.empty(types), total.shape[0] - 1
    values, whole = np.empty(types * (d + 1)), np.zeros(types * (d + 1), dtype=np.int64)
    for u in range(users.counts.shape[0]):
        gram, moment = users.gram[u], users.moment[u]
        if users.counts[u] > 0 and _are_sums(gram, moment):
            learn_row(model, 0, gram, moment, work)
            weigh_types(model, 0, work.row, weights)
            norm = _write_types(root, centres, work.row, weights, values)
            if _make_whole(norm, most, steps, values, whole):
                for place in range(values.shape[0]):
                    total[place] += whole[place]
                total[last] += count
