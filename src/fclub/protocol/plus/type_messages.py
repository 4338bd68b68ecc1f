"""Messages of servers that learn types: their sums up, all others' sums down.

Servers that release whole users send noised sums up, and get what all releases say of types.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from fclub.core.plus.type_filter import FilterRules, ReleasedTypes
from fclub.core.plus.type_model import row_length
from fclub.core.plus.type_release import release_length
from fclub.core.plus.type_sums import TypeSums, are_possible
from fclub.core.types import Counts, Floats
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


@lru_cache(maxsize=64)
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


def check_values(values: Floats, types: int, dim: int) -> None:
    """Refuse what sums over users by type cannot be."""
    if not np.isfinite(values).all():
        raise InvalidMessage("sums are not finite")
    if not are_possible(read_sums(values, types, dim), 2.0 * MAX_COUNT, ROUNDING):
        raise InvalidMessage("sums that users cannot add up to")


def length_of_sums(types: int, dim: int) -> int:
    """Numbers in `write_sums`."""
    return _bounds(types, dim)[-1]


def read_sums(values: Floats, types: int, dim: int) -> TypeSums:
    """The inverse of `write_sums`."""
    parts = TypeSums(*(values[start:stop] for start, stop in pairwise(_bounds(types, dim))))
    places = places_of(dim)
    matrices = {name: getattr(parts, name)[places] for name in MATRICES}
    return parts._replace(rows=parts.rows.reshape(types, -1), **matrices)


FARTHEST = 100.0
"""A centre or a deviation that is further away is no taste for rewards between 0 and 1."""


class Release(Message, frozen=True, array_like=True, tag="release"):
    """The noised sums of one slot, in lattice steps, taken at the types of that `version`.

    `users` and `visits` of the server are public.
    """

    period: int
    slot: int
    version: int
    users: int
    visits: int
    types: int
    sums: bytes

    def count(self) -> Count:
        return Count(phases=self.types)

    def parts(self) -> Sequence[Part]:
        """Whose visits they are is not told: all of them are noted with the first type."""
        counts = [self.visits] + [0] * (self.types - 1)
        return [TypePart(write_id(k), struct.pack("<q", count)) for k, count in enumerate(counts)]


class Released(Message, frozen=True, array_like=True, tag="released"):
    """What the releases of `servers` say, with so many `users` and `visits` in all: their types."""

    version: int
    servers: int
    users: int
    visits: int
    types: int
    values: bytes

    def count(self) -> Count:
        return Count(phases=self.types)


def write_noised(sums: Counts) -> bytes:
    """8 bytes each, little-endian."""
    return sums.astype("<i8").tobytes()


def read_noised(data: bytes, types: int, dim: int) -> Floats:
    """Whole numbers, of which there must be as many as a release has."""
    expected = 8 * release_length(types, dim)
    if len(data) != expected:
        raise InvalidMessage(f"a release of {len(data)} bytes, expected {expected}")
    return np.frombuffer(data, dtype="<i8").astype(np.float64)


def check_release(message: Release, releases: int, types: int) -> None:
    """Refuse what no server with these rules sends."""
    if message.types != types or not 0 <= message.slot < releases or message.period < 0:
        raise InvalidMessage(f"a release over {message.types} types in slot {message.slot}")
    if not (1 <= message.users <= MAX_COUNT and 0 <= message.visits <= MAX_COUNT):
        raise InvalidMessage(f"{message.users} users with {message.visits} visits make no sense")


def write_types(types: ReleasedTypes) -> bytes:
    """Centres, the triangles of their covariances, shares."""
    triangle = triangle_of(types.centres.shape[1])
    covariances = [types.uncertainty(k)[triangle] for k in range(len(types.shares))]
    values = np.concatenate([types.centres.ravel(), np.ravel(covariances), types.shares])
    return values.astype("<f8").tobytes()


class ReadTypes(NamedTuple):
    """Centres, their covariances and shares of all users."""

    centres: Floats
    covariances: Floats
    shares: Floats


def read_types(data: bytes, rules: FilterRules) -> ReadTypes:
    """Types that can be used without looking at them again.

    Whoever sent them, no user adds more to a release than its bound; but what is not a number, or far
    from all tastes, would make releases useless.
    """
    K, d = rules.types, rules.dim
    half = d * (d + 1) // 2
    expected = 8 * K * (d + half + 1)
    if len(data) != expected:
        raise InvalidMessage(f"types of {len(data)} bytes, expected {expected}")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.abs(values).max() <= FARTHEST:
        raise InvalidMessage("types that no tastes can have")
    centres, triangles = values[: K * d].reshape(K, d), values[K * d : K * (d + half)].reshape(K, half)
    covariances, shares = triangles[:, places_of(d)], values[K * (d + half) :]
    if not (shares.min() > 0.0 and abs(shares.sum() - 1.0) <= 1e-6):
        raise InvalidMessage("shares of types that do not add up")
    if not np.linalg.eigvalsh(covariances).min() > 0.0:
        raise InvalidMessage("a covariance that is not positive")
    return ReadTypes(centres, covariances, shares)
