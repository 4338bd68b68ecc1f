"""What users add up to where the number of types adapts: by type, by half of a type, by pair of types.

Each type has two *halves*, between which its users are shared out, so that a split can be judged, and
of each pair of types it is known what uncertainty would be lost if they were one (docs/plus.md).
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import beside, compiled, inner
from fclub.core.plus.type_model import TypeModel, own_share, quadratic, row_length, weigh_types
from fclub.core.plus.type_sums import (
    OWN,
    OWN_INFORMATION,
    WITHIN,
    WITHIN_INFORMATION,
    Known,
    TypeSums,
    is_definite,
    residual,
)
from fclub.core.types import Floats, Indices, Matrix, Vector

LEAST_SHARE = 0.02
"""A user says nothing of the spread within a type that it belongs to with less probability."""

LEAST_WEIGHT = 1e-3
"""A user is not added to a type that it belongs to with less probability: the others have it all."""


class SplitSums(NamedTuple):
    """Sums over users with their probabilities r of each type.

    `sums` as for a fixed number of types; `own` Σr·o with o the log evidence of a vector of one's own
    against the types' constant; `entropy` −Σr log r. Of the first half of each type, where a user has
    the part h of r: `half_users`, `half_visits`, `half_own`, `half_entropy`, `half_rows`; of the second
    half only `rest_entropy`, for the others are what is left. `scatter` is the triangle of Σr eeᵀ with
    e = q_w − Q_w c, and `merging` the entropy that two types lose as one, above the diagonal.
    """

    sums: TypeSums
    own: Floats
    entropy: Floats
    half_users: Floats
    half_visits: Floats
    half_own: Floats
    half_entropy: Floats
    rest_entropy: Floats
    half_rows: Floats
    scatter: Floats
    merging: Floats

    @staticmethod
    def zeros(types: int, dim: int) -> SplitSums:
        k, row = types, row_length(dim)
        shapes = *[(k,)] * 7, (k, row), (k, row - dim), (k, k)
        return SplitSums(TypeSums.zeros(types, dim), *map(np.zeros, shapes))

    @property
    def types(self) -> int:
        return len(self.own)

    def plus(self, other: SplitSums) -> SplitSums:
        """What two servers add up to."""
        (first, *a), (second, *b) = self, other
        return SplitSums(first.plus(second), *(x + y for x, y in zip(a, b, strict=True)))

    def copy(self) -> SplitSums:
        sums, *rest = self
        return SplitSums(TypeSums(*(a.copy() for a in sums)), *(a.copy() for a in rest))


class HalfColumns(NamedTuple):
    """A user's log odds of the first half are row · a column of `features` + `bias`; if `open`."""

    features: Floats
    bias: Floats
    open: Floats


@beside
def sum_splits(
    model: TypeModel,
    known: Known,
    centres: Floats,
    within: Matrix,
    own: float,
    halves: HalfColumns,
    ids: Indices,
    labels: Indices,
    sums: SplitSums,
) -> None:
    """Add every user to its types, halves and pairs of types, in proportion to their probabilities.

    Notes the id of every user's most probable type in `labels`.
    """
    types, d = centres.shape
    base, weights, rest = sums.sums, np.empty(types), np.empty(d)
    present = np.empty(types, dtype=np.int64)
    for a in range(known.people.shape[0]):
        row, alone = known.rows[a], known.own[a]
        single = own_share(model, 0, alone, weigh_types(model, 0, row, weights))
        labels[known.people[a]] = ids[np.argmax(weights)]
        base.scalars[OWN] += single - own
        base.scalars[OWN_INFORMATION] += (single - own) * (single - own)
        count = keep_largest(weights, present)
        for x in range(count):
            k = present[x]
            weight = weights[k]
            base.users[k] += weight
            base.visits[k] += weight * known.visits[a]
            sums.own[k] += weight * alone
            sums.entropy[k] += uncertainty(weight)
            for place in range(row.shape[0]):
                base.rows[k, place] += weight * row[place]
            residual(row, centres[k], rest)
            place = 0
            for i in range(d):
                scaled = weight * rest[i]
                for j in range(i, d):
                    sums.scatter[k, place] += scaled * rest[j]
                    place += 1
            share = weight * (1.0 - single)
            if share > LEAST_SHARE:
                excess = quadratic(within, rest) - known.trace[a]
                base.scalars[WITHIN] += 0.5 * share * excess
                base.scalars[WITHIN_INFORMATION] += 0.5 * share * known.square[a]
            if halves.open[k] > 0.0:
                _add_half(row, halves, k, weight, known.visits[a], alone, sums)
        for x in range(count):
            for y in range(x + 1, count):
                one, other = weights[present[x]], weights[present[y]]
                lost = uncertainty(one) + uncertainty(other) - uncertainty(one + other)
                sums.merging[present[x], present[y]] += lost


@compiled
def keep_largest(weights: Vector, present: Indices) -> int:
    """Spread small weights over the others; notes the places of those, and returns their number."""
    count, total = 0, 0.0
    for k in range(weights.shape[0]):
        if weights[k] > LEAST_WEIGHT:
            present[count] = k
            count += 1
            total += weights[k]
    for x in range(count):
        weights[present[x]] /= total
    return count


@inner
def uncertainty(weight: float) -> float:
    """−w log w."""
    return -weight * log(weight) if weight > 0.0 else 0.0


@inner
def _add_half(
    row: Vector,
    halves: HalfColumns,
    k: int,
    weight: float,
    visits: float,
    alone: float,
    sums: SplitSums,
) -> None:
    odds = halves.bias[k]
    for place in range(row.shape[0]):
        odds += row[place] * halves.features[place, k]
    first = weight / (1.0 + exp(min(-odds, 700.0)))
    sums.half_users[k] += first
    sums.half_visits[k] += first * visits
    sums.half_own[k] += first * alone
    sums.half_entropy[k] += uncertainty(first)
    sums.rest_entropy[k] += uncertainty(weight - first)
    for place in range(row.shape[0]):
        sums.half_rows[k, place] += first * row[place]


@compiled
def halves_are_possible(sums: SplitSums, slack: float) -> bool:
    """Can the first halves, and what they leave to the second, be sums over users of these types?"""
    base, d = sums.sums, sums.sums.mean.shape[0]
    matrix, rest = np.empty((d, d)), np.empty((d, d))
    for k in range(sums.own.shape[0]):
        least, most = -slack, base.users[k] + slack * (1.0 + base.users[k])
        visits = base.visits[k] + slack * (1.0 + base.visits[k])
        if not (least <= sums.half_users[k] <= most and least <= sums.half_visits[k] <= visits):
            return False
        if min(sums.entropy[k], sums.half_entropy[k], sums.rest_entropy[k]) < least:
            return False
        place = d
        for i in range(d):
            for j in range(i, d):
                scale = 1.0 if i == j else 0.5
                matrix[i, j] = scale * sums.half_rows[k, place]
                rest[i, j] = scale * (base.rows[k, place] - sums.half_rows[k, place])
                matrix[j, i], rest[j, i] = matrix[i, j], rest[i, j]
                place += 1
        scale = trace_of(base.rows[k], d)
        if not (is_definite(matrix, slack, scale) and is_definite(rest, slack, scale)):
            return False
    return True


@inner
def trace_of(row: Vector, d: int) -> float:
    """tr Q_w of a row."""
    place, total = d, 0.0
    for i in range(d):
        total += row[place]
        place += d - i
    return total


def split_type(sums: SplitSums, place: int) -> SplitSums:
    """The halves of a type as types: the first in its place, the second as the last type.

    Nothing is known of halves of the halves. A half and another type lose at most what the whole would.
    """
    s, k = sums.sums, place

    def parted(whole: Floats, half: Floats) -> Floats:
        changed: Floats = np.concatenate([whole, whole[k : k + 1] - half[k : k + 1]])
        changed[k] = half[k]
        return changed

    entropy = np.append(sums.entropy, sums.rest_entropy[k])
    entropy[k] = sums.half_entropy[k]
    base = s._replace(
        users=parted(s.users, sums.half_users),
        visits=parted(s.visits, sums.half_visits),
        rows=parted(s.rows, sums.half_rows),
    )
    changed = SplitSums.zeros(sums.types + 1, len(s.mean))._replace(
        sums=base, own=parted(sums.own, sums.half_own), entropy=entropy
    )
    for old, new in zip(sums[3:10], changed[3:10], strict=True):
        new[:-1] = old
        new[k] = 0.0
    changed.merging[:-1, :-1] = sums.merging
    changed.merging[:-1, -1] = sums.merging[k] + sums.merging[:, k]
    changed.merging[k, -1] = entropy[k] + entropy[-1] - sums.entropy[k]
    return changed


def merge_types(sums: SplitSums, first: int, second: int) -> SplitSums:
    """Two types as one, in the place of the first; the second goes.

    With a third they lose at most what both would.
    """
    s, a, b = sums.sums, first, second

    def joined(values: Floats) -> Floats:
        changed = values.copy()
        changed[a] += changed[b]
        kept: Floats = np.delete(changed, b, axis=0)
        return kept

    pairs = sums.merging + sums.merging.T
    entropy = sums.entropy.copy()
    entropy[a], entropy[b] = max(entropy[a] + entropy[b] - pairs[a, b], 0.0), 0.0
    pairs[a, b] = pairs[b, a] = 0.0
    pairs = joined(joined(pairs).T)
    halves = {}
    for name in SplitSums._fields[3:10]:
        values = getattr(sums, name).copy()
        values[a] = 0.0
        halves[name] = np.delete(values, b, axis=0)
    base = s._replace(users=joined(s.users), visits=joined(s.visits), rows=joined(s.rows))
    return SplitSums(base, joined(sums.own), joined(entropy), **halves, merging=np.triu(pairs, 1))


def put_in_half(sums: SplitSums, place: int, first: bool) -> None:
    """All users of a type are in one of its halves: a bound as good as any while nothing is known."""
    base, part = sums.sums, float(first)
    sums.half_users[place] = part * base.users[place]
    sums.half_visits[place] = part * base.visits[place]
    sums.half_own[place] = part * sums.own[place]
    sums.half_entropy[place] = part * sums.entropy[place]
    sums.rest_entropy[place] = (1.0 - part) * sums.entropy[place]
    sums.half_rows[place] = part * base.rows[place]
