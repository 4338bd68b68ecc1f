"""Sums by type as bytes, and what servers refuse of them."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from fclub.core.plus.type_model import row_length
from fclub.core.plus.type_sums import TypeSums, are_possible
from fclub.core.types import Floats
from fclub.errors import InvalidMessage
from fclub.protocol.messages import (
    MAX_COUNT,
    ROUNDING,
    places_of,
    triangle_of,
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
