"""What one user adds to a release by type: whole numbers of bounded norm, from its own data alone.

A contribution is, for every type k with the user's probability w_k of it, w_k(q_w − Q_w c_k), its
residual at the released centre, and w_k itself; then the triangle of Q_w. All of it follows from the
user's statistics and from `ReleasePoint`, which holds released or public values only.
"""

from __future__ import annotations

from math import exp, isfinite, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import beside, inner
from fclub.core.kernels import invert
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats, Matrix, Vector

MOST = 1e9
"""Larger entries than this are no sums of observations: such a user adds nothing."""


class ReleasePoint(NamedTuple):
    """Where contributions are taken: reward variance, W⁻¹ (a diagonal), log π_k and centres.

    Entries are multiplied before their norm is bounded: a residual's by `scale`, a probability by
    `share`, an entry of Q_w by `gram` and the scales of its row and column.
    """

    variance: float
    within: Floats
    weights: Floats
    centres: Floats
    scale: Floats
    share: float
    gram: float


class Room(NamedTuple):
    """For one user's matrices and numbers."""

    matrix: Matrix
    information: Matrix
    vector: Vector
    weights: Vector
    pulls: Matrix
    values: Vector
    whole: Counts


def release_length(types: int, dim: int) -> int:
    """Entries of a release."""
    return types * (dim + 1) + dim * (dim + 1) // 2


@inner
def _make_room(types: int, d: int) -> Room:
    length = types * (d + 1) + d * (d + 1) // 2
    matrices, pulls, values = np.empty((2, d, d)), np.empty((types, d)), np.empty(length)
    whole = np.zeros(length, dtype=np.int64)
    return Room(matrices[0], matrices[1], np.empty(d), np.empty(types), pulls, values, whole)


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
def _describe(point: ReleasePoint, gram: Matrix, moment: Vector, room: Room) -> bool:
    """Q_w = W⁻¹ − W⁻¹AW⁻¹ and q_w = W⁻¹Aq, A = (Q + W⁻¹)⁻¹; False if there is no such A."""
    d, v, within = moment.shape[0], point.variance, point.within
    for i in range(d):
        for j in range(d):
            room.matrix[i, j] = gram[i, j] / v
        room.matrix[i, i] += within[i]
    if not isfinite(invert(room.matrix, room.information)):
        return False
    for i in range(d):
        total = 0.0
        for j in range(d):
            total += room.information[i, j] * moment[j]
        room.vector[i] = within[i] * total / v
    for i in range(d):
        for j in range(d):
            room.information[i, j] *= -within[i] * within[j]
        room.information[i, i] += within[i]
    return True


@inner
def _weigh(point: ReleasePoint, room: Room) -> None:
    """Probabilities of the types, and their Q_w c_k."""
    types, d = point.centres.shape
    largest = -np.inf
    for k in range(types):
        evidence = point.weights[k]
        for i in range(d):
            pull = 0.0
            for j in range(d):
                pull += room.information[i, j] * point.centres[k, j]
            room.pulls[k, i] = pull
            evidence += point.centres[k, i] * (room.vector[i] - 0.5 * pull)
        room.weights[k] = evidence
        largest = max(largest, evidence)
    total = 0.0
    for k in range(types):
        room.weights[k] = exp(room.weights[k] - largest)
        total += room.weights[k]
    for k in range(types):
        room.weights[k] /= total


@inner
def _write(point: ReleasePoint, room: Room) -> float:
    """Write the contribution before it is bounded; returns its norm."""
    types, d = point.centres.shape
    place, square = 0, 0.0
    for k in range(types):
        weight = room.weights[k]
        for i in range(d):
            rest = room.vector[i] - room.pulls[k, i]
            room.values[place] = weight * rest * point.scale[i]
            place += 1
        room.values[place] = weight * point.share
        place += 1
    for i in range(d):
        for j in range(i, d):
            scale = point.gram * point.scale[i] * point.scale[j]
            room.values[place] = scale * room.information[i, j]
            place += 1
    for place in range(room.values.shape[0]):
        square += room.values[place] * room.values[place]
    return sqrt(square)


@inner
def _make_whole(norm: float, most: float, steps: int, room: Room) -> bool:
    """Scale to norm `most` = `steps` lattice steps at most, round towards zero; False if that fails.

    Entries are compared before they become whole numbers, and the sum of squares stops growing as soon
    as it is too large: nothing can wrap.
    """
    factor = steps / max(norm, most)
    square, limit = 0, steps * steps
    for place in range(room.values.shape[0]):
        value = room.values[place] * factor
        if not abs(value) <= steps:
            return False
        whole = int(value)
        room.whole[place] = whole
        square += whole * whole
        if square > limit:
            return False
    return True


@inner
def _encode(
    point: ReleasePoint, gram: Matrix, moment: Vector, visits: int, most: float, steps: int, room: Room
) -> bool:
    """Fill `room.whole`; False: the user adds nothing."""
    if visits == 0 or not _are_sums(gram, moment) or not _describe(point, gram, moment, room):
        return False
    _weigh(point, room)
    return _make_whole(_write(point, room), most, steps, room)


@beside
def add_contributions(
    point: ReleasePoint, users: Packed, most: float, steps: int, total: Counts
) -> None:
    """Add every user's contribution, of norm at most `most`, in lattice steps of `most` / `steps`.

    Users are taken one by one, so that no user's numbers depend on how many others there are.
    """
    room = _make_room(point.centres.shape[0], point.centres.shape[1])
    for u in range(users.counts.shape[0]):
        if _encode(point, users.gram[u], users.moment[u], users.counts[u], most, steps, room):
            for place in range(total.shape[0]):
                total[place] += room.whole[place]
