"""Which of many items come first where there is more to it than their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fclub.core.items import NO_SUMS, ItemSums
from fclub.core.types import Flags, Floats, Indices, Matrix
from fclub.protocol.interfaces.learner import Bound


class Wishes(NamedTuple):
    """Factors of the scores, by place; at most so many with the same of an item's `categories`."""

    factors: Floats | None = None
    categories: Callable[[int], Sequence[int]] | None = None
    most: int = 0


class Estimates(NamedTuple):
    """Mean reward of items, and how far the policy looks above it, in the unit of the model."""

    means: Floats
    widths: Floats


def estimates(items: Matrix, bound: Bound, known: ItemSums = NO_SUMS) -> Estimates:
    """`offset` + xᵀθ and `radius`·√(xᵀVx), of which a score is the sum before it is limited.

    With what is `known` of items beyond their features: its mean and variance are added.
    """
    means, squares = bound.offset + items @ bound.theta, items @ bound.inverse
    variances = np.einsum("ki,ki->k", squares, items).clip(0.0)
    if len(known.counts):
        effects, doubts = known.effects()
        means, variances = means + effects, variances + doubts
    return Estimates(means, bound.radius * np.sqrt(variances))


def ranked(
    items: Matrix,
    on_offer: Flags,
    bound: Bound,
    factors: Floats | None,
    known: ItemSums = NO_SUMS,
) -> Indices:
    """All places on offer, best first, by scores as `best_items` has them times factors.

    A score below 0 is divided: a larger factor never makes an item worse.
    """
    places = np.flatnonzero(on_offer)
    means, widths = estimates(items[places], bound, known.at(places))
    most = bound.offset + bound.most
    scores = np.minimum(means + widths, most)
    ties = np.where(scores == most, -means, 0.0)
    if factors is not None:
        boosts = factors[places]
        scores = np.where(scores < 0.0, scores / boosts, scores * boosts)
    order: Indices = np.lexsort((ties, -scores))
    return places[order]


def first_of(places: Iterable[int], count: int, wishes: Wishes) -> list[int]:
    """The first places, without those whose category has enough before them."""
    found: list[int] = []
    used: Counter[int] = Counter()
    for place in places:
        if len(found) == count:
            break
        own = wishes.categories(place) if wishes.categories else ()
        if any(used[category] >= wishes.most for category in own):
            continue
        used.update(own)
        found.append(place)
    return found


def most_similar(items: Matrix, place: int, on_offer: Flags, count: int) -> list[tuple[int, float]]:
    """Places and cosines of the items on offer that are most similar to one, most similar first.

    An item without features is similar to none.
    """
    places = np.flatnonzero(on_offer)
    rows, x = items[places], items[place]
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(x)
    cosines = np.divide(rows @ x, lengths, out=np.zeros(len(rows)), where=lengths > 0.0)
    order = np.argsort(-cosines, kind="stable")[:count]
    return list(zip(places[order].tolist(), cosines[order].tolist(), strict=True))
