"""Sufficient statistics of a linear model: Gram matrix, moment vector, count.

State lives in `Packed` arrays, one row per user or cluster; `Statistics` is a read-only value or view
of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.kernels import add_outer, add_scaled
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector


class Packed(NamedTuple):
    """(V, b, T) of many users or clusters: arrays of shape (rows, d, d), (rows, d), (rows,)."""

    gram: Floats
    moment: Floats
    counts: Counts

    @staticmethod
    def zeros(rows: int, dim: int) -> Packed:
        return Packed(np.zeros((rows, dim, dim)), np.zeros((rows, dim)), np.zeros(rows, dtype=np.int64))

    def slice(self, start: int, stop: int) -> Packed:
        """The same memory, fewer rows."""
        return Packed(self.gram[start:stop], self.moment[start:stop], self.counts[start:stop])

    def copy(self) -> Packed:
        return Packed(self.gram.copy(), self.moment.copy(), self.counts.copy())

    def clear(self, row: int) -> None:
        """Nothing is known of this row any more."""
        for array in self:
            array[row] = 0


def _read_only(array: Floats) -> Floats:
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """(V, b, T) of one user or cluster; cannot be written through."""

    gram: Matrix
    moment: Vector
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "gram", _read_only(self.gram))
        object.__setattr__(self, "moment", _read_only(self.moment))

    @staticmethod
    def zeros(dim: int) -> Statistics:
        return Statistics(np.zeros((dim, dim)), np.zeros(dim), 0)

    @staticmethod
    def of(packed: Packed, row: int) -> Statistics:
        """A view of one row: it changes when the row does."""
        return Statistics(packed.gram[row], packed.moment[row], int(packed.counts[row]))

    @property
    def dim(self) -> int:
        return int(self.moment.shape[0])

    def copy(self) -> Statistics:
        """A value that stays as it is when the row changes."""
        return Statistics(self.gram.copy(), self.moment.copy(), self.count)

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(self.gram + other.gram, self.moment + other.moment, self.count + other.count)

    def __sub__(self, other: Statistics) -> Statistics:
        return Statistics(self.gram - other.gram, self.moment - other.moment, self.count - other.count)

    def shifted(self, amount: float) -> Statistics:
        """The Gram matrix plus `amount`·I."""
        return Statistics(self.gram + amount * np.eye(self.dim), self.moment, self.count)


def pack_statistics(rows: list[Statistics], dim: int, prefix: str) -> dict[str, Any]:
    """A list of statistics as three arrays by dotted name."""
    packed = Packed.zeros(len(rows), dim)
    for i, row in enumerate(rows):
        packed.gram[i], packed.moment[i], packed.counts[i] = row.gram, row.moment, row.count
    return {prefix + name: array for name, array in packed._asdict().items()}


def unpack_statistics(arrays: dict[str, Any], prefix: str) -> list[Statistics]:
    """The inverse of `pack_statistics`."""
    packed = Packed(*(arrays[prefix + name] for name in Packed._fields))
    return [Statistics.of(packed, row) for row in range(len(packed.counts))]


def replace_reward(
    users: Packed, squares: Floats, row: int, x: Vector, old: float, new: float
) -> Vector:
    """Another reward in the place of one that was kept; returns by what the moment has moved."""
    change: Vector = new * x - old * x
    users.moment[row] += change
    squares[row] += new * new - old * old
    return change


@compiled
def observe(packed: Packed, row: int, x: Vector, y: float) -> None:
    """(V, b, T) += (x xᵀ, y x, 1), Alg. 1."""
    add_outer(packed.gram[row], x, 1.0)
    add_scaled(packed.moment[row], x, y)
    packed.counts[row] += 1


@compiled
def sum_by_label(packed: Packed, labels: Indices, out: Packed) -> None:
    """Add every row to the row of `out` that its label names, in order."""
    rows, d = packed.moment.shape
    for i in range(rows):
        c = labels[i]
        for p in range(d):
            for q in range(d):
                out.gram[c, p, q] += packed.gram[i, p, q]
            out.moment[c, p] += packed.moment[i, p]
        out.counts[c] += packed.counts[i]


def total_by_label(packed: Packed, labels: Indices, clusters: int) -> Packed:
    """The statistics of every cluster: the sum over its users."""
    out = Packed.zeros(clusters, packed.moment.shape[1])
    sum_by_label(packed, labels, out)
    return out
