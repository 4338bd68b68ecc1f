"""Messages of servers whose number of types adapts: their sums up; types and all others' sums down."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from fclub.core.plus.split_sums import SplitSums, halves_are_possible
from fclub.core.plus.type_model import row_length
from fclub.core.types import Floats, Indices
from fclub.errors import InvalidMessage
from fclub.protocol.messages import ROUNDING, Count, Message, Part, check_named, write_id
from fclub.protocol.plus.type_messages import (
    TypePart,
    check_values,
    length_of_sums,
    read_sums,
    write_sums,
)


class TypeDigest(Message, frozen=True, array_like=True, tag="types"):
    """A server's sums in the `step`-th exchange of a phase, over types with these `ids`.

    `version` says how often types were split and merged before, and `candidates` which halves each of
    them was shared out between, by number.
    """

    phase: int
    step: int
    version: int
    ids: tuple[int, ...]
    candidates: tuple[int, ...]
    sums: bytes

    def count(self) -> Count:
        return Count(phases=len(self.ids))

    def parts(self) -> Sequence[Part]:
        types = len(self.ids)
        visits = np.frombuffer(self.sums, dtype="<f8", count=types, offset=8 * types)
        counts = [struct.pack("<q", round(count)) for count in visits]
        named = zip(self.ids, counts, strict=True)
        return [TypePart(write_id(k), count) for k, count in named]


class TypeNews(Message, frozen=True, array_like=True, tag="type-news"):
    """The answer: the types from now on, and what the other `servers`, so many, add up to by them.

    New halves of the types at the places `fresh` begin at the centres in `starts`. If types were split
    or merged, `own` are the receiver's sums by the types as they are now.
    """

    phase: int
    step: int
    servers: int
    version: int
    ids: tuple[int, ...]
    candidates: tuple[int, ...]
    fresh: tuple[int, ...]
    starts: bytes
    own: bytes
    sums: bytes

    def count(self) -> Count:
        return Count(phases=len(self.ids) if self.servers else 0)


@lru_cache(maxsize=64)
def _bounds(types: int, dim: int) -> list[int]:
    """Where the parts of `write_splits` begin, and where the last one ends."""
    row = row_length(dim)
    sizes = [length_of_sums(types, dim), *[types] * 7]
    sizes += [types * row, types * (row - dim), types * (types - 1) // 2]
    return [0, *accumulate(sizes)]


@lru_cache(maxsize=64)
def _pairs(types: int) -> tuple[Indices, Indices]:
    """Places above the diagonal."""
    first, second = np.triu_indices(types, 1)
    return first, second


def length_of_splits(types: int, dim: int) -> int:
    """Numbers in `write_splits`."""
    return _bounds(types, dim)[-1]


def write_splits(sums: SplitSums) -> Floats:
    """All numbers in a row; of pairs of types those above the diagonal."""
    base, *rest, merging = sums
    pairs = merging[_pairs(sums.types)]
    return np.concatenate([write_sums(base), *(part.ravel() for part in rest), pairs])


def read_splits(values: Floats, types: int, dim: int) -> SplitSums:
    """The inverse of `write_splits`."""
    base, *rest, pairs = (values[start:stop] for start, stop in pairwise(_bounds(types, dim)))
    merging = np.zeros((types, types))
    merging[_pairs(types)] = pairs
    parts = [*rest[:7], *(part.reshape(types, -1) for part in rest[7:]), merging]
    return SplitSums(read_sums(base, types, dim), *parts)


def read_told(data: bytes, types: int, dim: int) -> SplitSums:
    """Sums that users can add up to; refuses others."""
    bounds = _bounds(types, dim)
    if len(data) != 8 * bounds[-1]:
        raise InvalidMessage(f"expected sums of {8 * bounds[-1]} bytes, got {len(data)}")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    check_values(values[: bounds[1]], types, dim)
    sums = read_splits(values, types, dim)
    if not (np.isfinite(values).all() and halves_are_possible(sums, ROUNDING)):
        raise InvalidMessage("halves of types that users cannot add up to")
    return sums


def check_types(ids: Sequence[int], candidates: Sequence[int], version: int, most: int) -> None:
    """Refuse what no server says of its types."""
    check_named(ids, "list of types")
    named = 1 <= len(ids) <= most and all(0 <= k < most for k in ids)
    if not named or len(candidates) != len(ids) or min(candidates) < 0 or version < 0:
        raise InvalidMessage(f"expected 1 to {most} types with their halves, got {ids}, {candidates}")


def read_starts(data: bytes, fresh: Sequence[int], types: int, dim: int) -> Floats:
    """Two centres for each type whose halves are new."""
    if len(data) != 16 * dim * len(fresh) or not all(0 <= k < types for k in fresh):
        raise InvalidMessage(f"expected starts of {len(fresh)} of {types} types, got {len(data)} bytes")
    starts = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(starts).all():
        raise InvalidMessage("starts that are not finite")
    return starts.reshape(len(fresh), 2, dim)
