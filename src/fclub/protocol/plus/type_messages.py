"""Messages of servers that learn types: their sums up, all others' sums down."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from fclub.core.plus.type_model import row_length
from fclub.core.plus.type_sums import TypeSums, are_possible
from fclub.core.types import Floats, Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.messages import (
    MAX_COUNT,
    ROUNDING,
    Count,
    Message,
    Part,
    places_of,
    triangle_of,
    write_id,
)

SCALARS = len(TypeSums.zeros(1, 1).scalars)
MATRICES = ("second", "information", "covariance")
"""The symmetric ones of `TypeSums`."""


class TypePart(NamedTuple):
    """A type as the list of what was sent shows it: its number, and how many observations."""

    cluster: bytes
    statistics: bytes


class TypeDigest(Message, frozen=True, array_like=True, tag="types"):
    """A server's sums by type: the `step`-th of a phase."""

    phase: int
    step: int
    types: int
    sums: bytes

    def count(self) -> Count:
        return Count(phases=self.types)

    def parts(self) -> Sequence[Part]:
        visits = np.frombuffer(self.sums, dtype="<f8", count=self.types, offset=8 * self.types)
        counts = [struct.pack("<q", round(count)) for count in visits]
        return [TypePart(write_id(k), count) for k, count in enumerate(counts)]


class TypeNews(Message, frozen=True, array_like=True, tag="type-news"):
    """The answer: what the other `servers` have sent, added up; their number is sent along."""

    step: int
    servers: int
    types: int
    sums: bytes

    def count(self) -> Count:
        return Count(phases=self.types if self.servers else 0)


@lru_cache(maxsize=16)
def _bounds(types: int, dim: int) -> list[int]:
    """Where the parts of `write_sums` begin, and where the last one ends."""
    half = dim * (dim + 1) // 2
    sizes = [types, types, types * row_length(dim), dim, half, half, dim, half, SCALARS]
    return [0, *accumulate(sizes)]


def write_sums(sums: TypeSums) -> Floats:
    """All numbers in a row, symmetric matrices as their upper triangle."""
    triangle = triangle_of(len(sums.mean))
    matrices = {name: getattr(sums, name)[triangle] for name in MATRICES}
    return np.concatenate([part.ravel() for part in sums._replace(**matrices)])


def to_bytes(values: Floats) -> bytes:
    """8 bytes each, little-endian."""
    return values.astype("<f8").tobytes()


def read_values(data: bytes, types: int, dim: int) -> Floats:
    """Numbers that may be sums over users by type; refuses what they cannot be."""
    expected = 8 * _bounds(types, dim)[-1]
    if len(data) != expected:
        raise InvalidMessage(f"sums of {len(data)} bytes, expected {expected}")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise InvalidMessage("sums are not finite")
    if not are_possible(read_sums(values, types, dim), 2.0 * MAX_COUNT, ROUNDING):
        raise InvalidMessage("sums that users cannot add up to")
    return values


def read_sums(values: Floats, types: int, dim: int) -> TypeSums:
    """The inverse of `write_sums`."""
    parts = TypeSums(*(values[start:stop] for start, stop in pairwise(_bounds(types, dim))))
    places = places_of(dim)
    matrices = {name: getattr(parts, name)[places] for name in MATRICES}
    return parts._replace(rows=parts.rows.reshape(types, -1), **matrices)


def information(row: Floats, dim: int) -> Matrix:
    """The matrix of a row, where entries beside the diagonal are doubled (`core.plus.type_model`)."""
    doubled: Matrix = row[dim:][places_of(dim)]
    return 0.5 * (doubled + np.diag(np.diag(doubled)))
