"""Sums by type as numbers in a row, in which they are sent and added up."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from fclub.core.packing import places_of, triangle_of
from fclub.core.plus.split_sums import SplitSums
from fclub.core.plus.type_model import row_length
from fclub.core.plus.type_sums import TypeSums
from fclub.core.types import Floats, Indices

SCALARS = len(TypeSums.zeros(1, 1).scalars)
MATRICES = ("second", "information", "covariance")
"""The symmetric ones of `TypeSums`."""


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


def read_sums(values: Floats, types: int, dim: int) -> TypeSums:
    """The inverse of `write_sums`."""
    parts = TypeSums(*(values[start:stop] for start, stop in pairwise(_bounds(types, dim))))
    places = places_of(dim)
    matrices = {name: getattr(parts, name)[places] for name in MATRICES}
    return parts._replace(rows=parts.rows.reshape(types, -1), **matrices)


@lru_cache(maxsize=64)
def _split_bounds(types: int, dim: int) -> list[int]:
    """Where the parts of `write_splits` begin, and where the last one ends."""
    row = row_length(dim)
    sizes = [_bounds(types, dim)[-1], *[types] * 7]
    sizes += [types * row, types * (row - dim), types * (types - 1) // 2]
    return [0, *accumulate(sizes)]


@lru_cache(maxsize=64)
def _pairs(types: int) -> tuple[Indices, Indices]:
    """Places above the diagonal."""
    first, second = np.triu_indices(types, 1)
    return first, second


def length_of_splits(types: int, dim: int) -> int:
    """Numbers in `write_splits`."""
    return _split_bounds(types, dim)[-1]


def write_splits(sums: SplitSums) -> Floats:
    """All numbers in a row; of pairs of types those above the diagonal."""
    base, *rest, merging = sums
    pairs = merging[_pairs(sums.types)]
    return np.concatenate([write_sums(base), *(part.ravel() for part in rest), pairs])


def read_splits(values: Floats, types: int, dim: int) -> SplitSums:
    """The inverse of `write_splits`."""
    base, *rest, pairs = (values[start:stop] for start, stop in pairwise(_split_bounds(types, dim)))
    merging = np.zeros((types, types))
    merging[_pairs(types)] = pairs
    parts = [*rest[:7], *(part.reshape(types, -1) for part in rest[7:]), merging]
    return SplitSums(read_sums(base, types, dim), *parts)
