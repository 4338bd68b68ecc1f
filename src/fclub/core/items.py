"""What items are worth beyond their features, learned from rewards.

With e_i the effect of item i on the users of a server, the residual of an observation, its reward
without what the server expected of this user and these features, is m + e_i plus noise of variance σ²,
where m is how far expectations are off on average and e_i ~ N(0, τ²). Given n_i residuals of the item
with the mean r_i, and κ = σ²/τ²,

    e_i ~ N((r_i − m)·n_i/(n_i + κ), σ²/(n_i + κ)).

An item without residuals has mean 0 and variance τ²: it starts from its features. m, σ² and τ² are
those of one-way analysis of variance, by moments: Σ over all of (r − r_i)² ≈ (N − M)σ² and
Σ n_i(r_i − m)² ≈ (M − 1)σ² + Nτ² for M items with N residuals.

Residuals are whole multiples of 2⁻¹⁶, so that what is taken out again is out to the last bit, and sums
do not depend on the order.
"""

from __future__ import annotations

from math import floor, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import choose, dot
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector

UNIT = 2.0**-16

MOST = 8.0
"""No residual is larger: rewards are from [0, 1], and a score further off says nothing."""

EXPECTED, EXPECTED_NOISE, EXPECTED_EFFECT = 50.0, 0.2, 0.01
"""σ² and τ² before there are residuals, and how many of these that counts as."""

SUM, SQUARES, NUMBER, DUE = range(4)
"""Places in `totals`: of all residuals, and their number; after how many more m, σ² and τ² are due."""

MEAN, NOISE, RATIO = range(3)
"""Places in `model`: m, σ² and κ."""


class ItemEffects(NamedTuple):
    """By server and item: the number of residuals and their sum; by server `totals` and `model`."""

    counts: Counts
    sums: Indices
    totals: Indices
    model: Floats

    @staticmethod
    def zeros(servers: int, items: int) -> ItemEffects:
        model = np.tile([0.0, EXPECTED_NOISE, EXPECTED_NOISE / EXPECTED_EFFECT], (servers, 1))
        counts, sums = np.zeros((2, servers, items), dtype=np.int64)
        return ItemEffects(counts, sums, np.zeros((servers, 4), dtype=np.int64), model)


@compiled
def in_units(residual: float) -> int:
    """A residual as it is summed."""
    return floor(min(max(residual, -MOST), MOST) / UNIT + 0.5)


@compiled
def add_residual(effects: ItemEffects, server: int, item: int, residual: int) -> None:
    """Learn from a residual."""
    change_residuals(effects, server, item, 1, residual, residual * residual)
    fit_if_due(effects, server, 1)


@compiled
def change_residuals(
    effects: ItemEffects, server: int, item: int, count: int, total: int, squares: int
) -> None:
    """Add so many residuals of an item, or take them out where `count` is negative."""
    own = effects.totals[server]
    effects.counts[server, item] += count
    effects.sums[server, item] += total
    own[NUMBER] += count
    own[SUM] += total
    own[SQUARES] += squares


@compiled
def fit_if_due(effects: ItemEffects, server: int, changes: int) -> None:
    """Fit the model anew whenever a tenth of the residuals has come or gone."""
    own = effects.totals[server]
    own[DUE] -= changes
    if own[DUE] <= 0:
        fit_effects(effects, server)
        own[DUE] = own[NUMBER] // 10 + 1


@compiled
def fit_effects(effects: ItemEffects, server: int) -> None:
    """m, σ² and κ from all residuals."""
    own, model = effects.totals[server], effects.model[server]
    number = float(own[NUMBER])
    mean = own[SUM] / max(number, 1.0)
    items, explained, between = 0.0, 0.0, 0.0
    for i in range(effects.counts.shape[1]):
        n = effects.counts[server, i]
        if n > 0:
            rate = effects.sums[server, i] / n
            items += 1.0
            explained += n * rate * rate
            between += n * (rate - mean) * (rate - mean)
    within = UNIT * UNIT * max(own[SQUARES] - explained, 0.0)
    noise = (within + EXPECTED * EXPECTED_NOISE) / (number - items + EXPECTED)
    beyond = UNIT * UNIT * between - max(items - 1.0, 0.0) * noise
    effect = (beyond + EXPECTED * EXPECTED_EFFECT) / (number + EXPECTED)
    model[MEAN], model[NOISE] = UNIT * mean, noise
    model[RATIO] = noise / max(effect, LEAST_EFFECT)


LEAST_EFFECT = 1e-6
"""A deviation of a thousandth of a reward: less is none."""


@inner
def effect_of(model: Vector, count: int, total: int) -> float:
    """The mean of e_i."""
    return float((UNIT * total - count * model[MEAN]) / (count + model[RATIO]))


@inner
def doubt_of(model: Vector, count: int) -> float:
    """The variance of e_i."""
    return float(model[NOISE] / (count + model[RATIO]))


class ItemSums(NamedTuple):
    """Of items by place: the number of residuals and their sum; and the `model` of them all.

    There are no places where no effects are learned.
    """

    counts: Counts
    sums: Indices
    model: Vector

    def at(self, places: Indices) -> ItemSums:
        if not len(self.counts):
            return self
        return self._replace(counts=self.counts[places], sums=self.sums[places])

    def effects(self) -> tuple[Floats, Floats]:
        """Mean and variance of every e_i."""
        total = UNIT * self.sums - self.counts * self.model[MEAN]
        weight = self.counts + self.model[RATIO]
        return total / weight, self.model[NOISE] / weight


NO_SUMS = ItemSums(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(3))


class Residuals(NamedTuple):
    """Of one item: their number, their sum and that of their squares."""

    number: int
    total: int
    squares: int

    def __sub__(self, other: Residuals) -> Residuals:
        number, total, squares = (one - two for one, two in zip(self, other, strict=True))
        return Residuals(number, total, squares)


NOTHING = Residuals(0, 0, 0)


class ItemBook:
    """Effects of the items of a catalogue whose rows are added and move; of others by id.

    An item that leaves the catalogue or gets another row keeps what was learned of it.
    """

    def __init__(self, rows: int) -> None:
        self._effects, self._squares = ItemEffects.zeros(1, rows), np.zeros(rows, dtype=np.int64)
        self._elsewhere: dict[str, Residuals] = {}

    def first(self, rows: int) -> ItemSums:
        """What is known of the items in the first rows."""
        counts, sums, _, model = self._effects
        return ItemSums(counts[0, :rows], sums[0, :rows], model[0])

    def add(self, row: int, key: str, residuals: Residuals) -> None:
        """Add residuals of an item; `row` is below 0 if it is not in the catalogue."""
        self._put(row, key, residuals)
        if row >= 0:
            fit_if_due(self._effects, 0, abs(residuals.number))

    def _put(self, row: int, key: str, residuals: Residuals) -> None:
        if row >= 0:
            change_residuals(self._effects, 0, row, *residuals)
            self._squares[row] += residuals.squares
        else:
            own = self._elsewhere.pop(key, NOTHING) - (NOTHING - residuals)
            if own.number:
                self._elsewhere[key] = own

    def leave(self, row: int, key: str) -> None:
        """The item is not in this row any more."""
        number, total = int(self._effects.counts[0, row]), int(self._effects.sums[0, row])
        residuals = Residuals(number, total, int(self._squares[row]))
        self._put(row, key, NOTHING - residuals)
        self._put(-1, key, residuals)

    def enter(self, row: int, key: str) -> None:
        """The item is in this row now."""
        self._put(row, key, self._elsewhere.pop(key, NOTHING))

    def move(self, rows: Indices, room: int) -> None:
        """These rows are the first ones now, with room for so many."""
        counts, sums, totals, model = self._effects
        old, moved = (counts[0], sums[0], self._squares), np.zeros((3, room), dtype=np.int64)
        moved[:, : len(rows)] = [array[rows] for array in old]
        self._effects = ItemEffects(moved[:1], moved[1:2], totals, model)
        self._squares = moved[2]

    def fit(self) -> None:
        fit_effects(self._effects, 0)


EMPTY = -1


class Shelf(NamedTuple):
    """Items that are known by their features, in the order in which they were first shown.

    `table` has twice as many places as there is room for items: a search begins at the fractional part
    of a fixed linear `form` of the features, and passes over what is taken by others. Items with equal
    features are one item. `used` is the number of items so far. Without a table no effects are learned.
    """

    features: Floats
    table: Indices
    used: Counts
    form: Vector
    effects: ItemEffects

    @staticmethod
    def of(servers: int, items: int, dim: int) -> Shelf:
        """Room for so many items."""
        table = np.full(2 * items, EMPTY, dtype=np.int64)
        used, effects = np.zeros(1, dtype=np.int64), ItemEffects.zeros(servers, items)
        return Shelf(np.zeros((items, dim)), table, used, linear_form(dim), effects)


STREAM = 20_220_801
"""A fixed seed: where an item is put in the table decides nothing but the time to find it."""


def linear_form(dim: int) -> Vector:
    form: Vector = np.random.default_rng(STREAM).uniform(1e4, 1e5, dim)
    return form


NO_ITEMS = Shelf.of(1, 0, 1)
"""Where items do not come again."""


@inner
def place_of(form: Vector, table: Indices, features: Floats, x: Vector) -> int:
    """Where in the table this item is, or where it would be put."""
    size = int(table.shape[0])
    value = dot(form, x)
    place = int((value - floor(value)) * size) % size
    while table[place] != EMPTY and not _same(features[table[place]], x):
        place = (place + 1) % size
    return place


@inner
def _same(a: Vector, b: Vector) -> bool:
    i, d = 0, int(a.shape[0])
    while i < d and a[i] == b[i]:
        i += 1
    return i == d


@compiled
def choose_known(
    shelf: Shelf,
    server: int,
    items: Matrix,
    theta: Vector,
    inverse: Matrix,
    radius: float,
    most: float,
) -> int:
    """`choose`, where an item's effect is added to its mean, and its variance to that of the mean."""
    if shelf.table.shape[0] == 0:
        return choose(items, theta, inverse, radius, most)
    count, d = items.shape
    model = shelf.effects.model[server]
    best, best_score, best_mean = 0, -np.inf, -np.inf
    for k in range(count):
        mean, half = 0.0, 0.0
        for i in range(d):
            row = 0.5 * inverse[i, i] * items[k, i]
            for j in range(i):
                row += inverse[i, j] * items[k, j]
            half += items[k, i] * row
            mean += items[k, i] * theta[i]
        item = shelf.table[place_of(shelf.form, shelf.table, shelf.features, items[k])]
        number, total = 0, 0
        if item != EMPTY:
            number, total = shelf.effects.counts[server, item], shelf.effects.sums[server, item]
        mean += effect_of(model, number, total)
        variance = max(2.0 * half, 0.0) + doubt_of(model, number)
        score = min(mean + radius * sqrt(variance), most)
        if score > best_score or (score == most and mean > best_mean):
            best, best_score, best_mean = k, score, mean
    return best


@compiled
def learn_item(shelf: Shelf, server: int, x: Vector, theta: Vector, y: float) -> None:
    """Learn the effect of the item with these features from a reward of a user with this estimate.

    Where there is no room for another item, that one is not learned.
    """
    place = place_of(shelf.form, shelf.table, shelf.features, x)
    item = shelf.table[place]
    if item == EMPTY:
        item = shelf.used[0]
        if item == shelf.features.shape[0]:
            return
        shelf.table[place], shelf.used[0] = item, item + 1
        shelf.features[item] = x
    add_residual(shelf.effects, server, item, in_units(y - dot(theta, x)))
