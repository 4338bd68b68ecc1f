"""Many items on offer, and the few to show."""

from __future__ import annotations

from math import sqrt

import numpy as np

from fclub.core.compiling import beside
from fclub.core.items import NO_SUMS, ItemSums, doubt_of, effect_of
from fclub.core.types import Flags, Floats, Indices, Matrix, Vector


@beside
def best_of(
    items: Matrix,
    on_offer: Flags,
    theta: Vector,
    inverse: Matrix,
    radius: float,
    most: float,
    known: ItemSums,
    places: Indices,
    scores: Floats,
) -> int:
    """Write places and scores of the best items, best first, and return how many there are.

    The score of `kernels.choose`, in one pass; the first of equals wins, and the greatest mean of those
    that reach `most`. Items that are not `on_offer` are passed over.
    """
    count, d = items.shape
    room, found = places.shape[0], 0
    means = np.empty(room)
    for k in range(count):
        if not on_offer[k]:
            continue
        mean, half = 0.0, 0.0
        for i in range(d):
            row = 0.5 * inverse[i, i] * items[k, i]
            for j in range(i):
                row += inverse[i, j] * items[k, j]
            half += items[k, i] * row
            mean += items[k, i] * theta[i]
        variance = max(2.0 * half, 0.0)
        if known.counts.shape[0] > 0:
            mean += effect_of(known.model, known.counts[k], known.sums[k])
            variance += doubt_of(known.model, known.counts[k])
        score = min(mean + radius * sqrt(variance), most)
        place = found
        while place > 0 and (score > scores[place - 1] or (score == most and mean > means[place - 1])):
            place -= 1
        if place == room:
            continue
        found = min(found + 1, room)
        for later in range(found - 1, place, -1):
            scores[later], means[later] = scores[later - 1], means[later - 1]
            places[later] = places[later - 1]
        scores[place], means[place], places[place] = score, mean, k
    return found


def mix(best: int, count: int, share: float, coin: float) -> tuple[int, float]:
    """Of `count` items, the best with probability 1 − share, else any; and how likely that one was.

    `coin` is a number from [0, 1): below `share` it also says which one.
    """
    chosen = min(int(coin / share * count), count - 1) if coin < share else best
    return chosen, share / count + (1.0 - share) * (chosen == best)


Scoring = tuple[Vector, Matrix, float, float]
"""What items are scored with: theta, inverse, radius and most of `best_of`."""


def best_items(
    items: Matrix, on_offer: Flags, scoring: Scoring, count: int, known: ItemSums = NO_SUMS
) -> tuple[Indices, Floats]:
    """Places and scores of the `count` best items on offer, or of all if there are fewer."""
    count = min(count, len(items))
    places, scores = np.zeros(count, dtype=np.int64), np.zeros(count)
    found = best_of(items, on_offer, *scoring, known, places, scores)
    return places[:found], scores[:found]
