"""Items' features from ratings under a budget for each user.

Two sums over users are released, each with noise once. In the first a user with r ratings adds
1/√(2r) to the ratings of each of its items, and as much with the sign of its opinion to their likes:
a vector of norm 1. It decides which items are most rated. In the second it adds x xᵀ, x being 1/√r' at
each of its r' items among those, as a vector of the upper triangle with √2 off the diagonal: norm 1
(Dwork, Talwar, Thakurta and Zhang 2014, with a row of norm 1). Vectors are written in whole steps,
rounded towards zero, which makes none longer. Everything else is computed from the two sums. Which
items there are is taken for public.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fclub.config import require
from fclub.core.types import Counts, Flags, Floats, Indices
from fclub.environments.data.pipeline import with_quality
from fclub.environments.world import with_constant
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import TRANSCRIPT, USER
from fclub.privacy.noise import NoiseSource
from fclub.privacy.slots import SlotPlan, draw_whole, plan_slots

STREAM = "features"
RELEASES = 2
DOUBT = 2.0
"""Deviations of the noise that an item's sum of likes is shrunk by."""


class Released(NamedTuple):
    """Places of the items with most ratings, and their vectors, computed from noised sums only."""

    items: Indices
    rows: Floats


def plan_features(epsilon: float, delta: float, items: int, size: int) -> SlotPlan:
    """Noise for both sums; the larger of them decides what rounding takes from δ."""
    entries = max(2 * items, size * (size + 1) // 2)
    return plan_slots(epsilon, delta, entries, RELEASES)


def new_ledger(epsilon: float, delta: float, source: NoiseSource) -> Ledger:
    ledger = Ledger(TRANSCRIPT, epsilon, delta, seeded=source.seeded, unit=USER)
    cost = getattr(source, "cost", None)
    ledger.library_cost = cost
    return ledger


def release_features(
    rated: Any,
    likes: Flags,
    dim: int,
    size: int,
    quality: bool,
    plan: SlotPlan,
    ledger: Ledger,
    source: NoiseSource,
) -> Released:
    """`rated` is sparse, users by items, with sorted indices; `likes` tells of each entry."""
    least = 3 if quality else 2
    require(dim >= least, f"dim must be at least {least}", dim)
    require(dim - least + 1 <= size, "dim must not be above the number of items", dim)
    ledger.open(STREAM, plan.mechanism, 1.0)
    told, liked = np.split(_noised(opinion_sums(rated, likes, plan.steps), plan, ledger, source), 2)
    items = np.argsort(-told, kind="stable")[:size]
    triangle = _noised(triangle_sums(rated[:, items], plan.steps), plan, ledger, source)
    vectors = _leading(_symmetric(triangle, size), dim - least + 1)
    rows = with_constant(vectors, np.ones(size, dtype=np.bool_))
    if quality:
        rows = with_quality(rows, _quality(told[items], liked[items], plan.deviation / plan.steps))
    return Released(items, rows)


def _noised(total: Counts, plan: SlotPlan, ledger: Ledger, source: NoiseSource) -> Floats:
    """Entered first; in units of the largest contribution."""
    ledger.release(STREAM, 0)
    return np.asarray((total + draw_whole(source, len(total), plan.deviation)) / plan.steps)


def opinion_sums(rated: Any, likes: Flags, steps: int) -> Counts:
    """Ratings of each item, then likes minus others, in lattice steps."""
    numbers = np.diff(rated.indptr)
    share = np.floor(steps / np.sqrt(2.0 * np.maximum(numbers, 1))).astype(np.int64)
    each = np.repeat(share, numbers)
    total = np.zeros((2, rated.shape[1]), dtype=np.int64)
    np.add.at(total[0], rated.indices, each)
    np.add.at(total[1], rated.indices, np.where(likes, each, -each))
    return total.ravel()


def triangle_sums(rated: Any, steps: int) -> Counts:
    """The upper triangle of Σ x xᵀ, row by row, √2 times what is off the diagonal."""
    size = rated.shape[1]
    total = np.zeros((size, size), dtype=np.int64)
    for user in range(rated.shape[0]):
        own = rated.indices[rated.indptr[user] : rated.indptr[user + 1]]
        if len(own):
            on, off = int(steps / len(own)), int(sqrt(2.0) * steps / len(own))
            total[np.ix_(own, own)] += off
            total[own, own] += on - off
    return np.asarray(total[np.triu_indices(size)])


def _symmetric(triangle: Floats, size: int) -> Floats:
    rows, columns = np.triu_indices(size)
    found = np.zeros((size, size))
    found[rows, columns] = np.where(rows == columns, 1.0, sqrt(0.5)) * triangle
    found[columns, rows] = found[rows, columns]
    return found


def _leading(matrix: Floats, count: int) -> Floats:
    """Eigenvectors of the largest eigenvalues, the largest entry of each above 0."""
    _, vectors = np.linalg.eigh(matrix)
    found = vectors[:, ::-1][:, :count]
    top = np.argmax(np.abs(found), axis=0)
    return np.asarray(found * np.sign(found[top, np.arange(count)]))


def _quality(told: Floats, liked: Floats, noise: float) -> Floats:
    """Between −1 and 1: likes above the mean, shrunk by how much of them may be noise."""
    ratings = np.maximum(told, 0.0)
    mean = float(liked.sum()) / max(float(ratings.sum()), noise)
    found = (liked - mean * ratings) / (ratings + DOUBT * noise)
    return np.asarray(found / max(float(np.abs(found).max()), 1e-12))
