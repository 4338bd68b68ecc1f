"""`popular`: what most people like, for everybody.

How often each item was shown and liked, by anybody, is kept by item; an item is known by its features.
Items are in the order in which they were first shown, and `core.items` finds the row of one.
"""

from __future__ import annotations

from math import sqrt
from typing import Annotated, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.compiling import compiled
from fclub.core.items import EMPTY, linear_form, place_of
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.parameters import meaning
from fclub.policies.base import KernelPolicy


class Popularity(NamedTuple):
    """Features, number of times shown and sum of rewards of each item; `totals` of all together.

    `table` has twice as many places as there is room for items, `used` the number of items so far.
    """

    features: Floats
    shown: Counts
    earned: Floats
    table: Indices
    used: Counts
    totals: Floats
    form: Vector
    strength: float
    exploration: float

    @property
    def room(self) -> int:
        """So many more items fit."""
        return len(self.shown) - int(self.used[0])


def with_room(state: Popularity, items: int) -> Popularity:
    """The same knowledge with room for so many items."""
    known = int(state.used[0])
    larger = state._replace(
        features=np.zeros((items, state.features.shape[1])),
        shown=np.zeros(items, dtype=np.int64),
        earned=np.zeros(items),
        table=np.full(2 * items, EMPTY, dtype=np.int64),
    )
    for old, new in ((state.features, larger.features), (state.shown, larger.shown)):
        new[:known] = old[:known]
    larger.earned[:known] = state.earned[:known]
    _fill_table(larger)
    return larger


@compiled
def _fill_table(state: Popularity) -> None:
    for row in range(state.used[0]):
        state.table[place_of(state.form, state.table, state.features, state.features[row])] = row


@compiled
def recommend(state: Popularity, user: int, items: Matrix) -> int:
    """argmax of mean plus `exploration` standard deviations of an item's like rate.

    Its posterior is a Beta distribution whose prior weighs as much as `strength` observations and has
    the mean of all items: that is all that is known of an item that nobody was shown.
    """
    base = (state.totals[1] + 1.0) / (state.totals[0] + 2.0)
    best, best_score = 0, -np.inf
    for k in range(items.shape[0]):
        row = state.table[place_of(state.form, state.table, state.features, items[k])]
        weight, rate = state.strength, base
        if row != EMPTY:
            weight += state.shown[row]
            rate = (state.strength * base + state.earned[row]) / weight
        score = rate + state.exploration * sqrt(max(rate * (1.0 - rate), 0.0) / (weight + 1.0))
        if score > best_score:
            best, best_score = k, score
    return best


@compiled
def feedback(state: Popularity, user: int, x: Vector, y: float) -> None:
    """Count for the item, whoever the user is; there must be room for a new one."""
    place = place_of(state.form, state.table, state.features, x)
    row = state.table[place]
    if row == EMPTY:
        row = state.used[0]
        state.table[place] = row
        state.features[row] = x
        state.used[0] = row + 1
    state.shown[row] += 1
    state.earned[row] += y
    state.totals[0] += 1.0
    state.totals[1] += y


FIRST_ROOM = 64


class Popular(KernelPolicy[Popularity]):
    """Like rates per item over all users, for catalogues.

    Features only say which item it is, so it is of use where the same items come again. People are
    offered different items anyway: on the real ratings that were tried, no exploration did best.

    >>> import fclub
    >>> fclub.simulate(fclub.Popular(strength=1.0), "synthetic", rounds=500)
    <Trace of popular in synthetic, seed 0: 500 rounds, regret ...>
    """

    catalogue = True
    kernels = (recommend, feedback)

    strength: Annotated[
        float, meaning("weight of the mean of all items in an item's rate", "observations", above=0)
    ] = 2.0
    exploration: Annotated[
        float, meaning("standard deviations that are added to an item's rate", least=0)
    ] = 0.0

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Popularity:
        nothing = Popularity(
            features=np.zeros((0, problem.dim)),
            shown=np.zeros(0, dtype=np.int64),
            earned=np.zeros(0),
            table=np.zeros(0, dtype=np.int64),
            used=np.zeros(1, dtype=np.int64),
            totals=np.zeros(2),
            form=linear_form(problem.dim),
            strength=self.strength,
            exploration=self.exploration,
        )
        return with_room(nothing, FIRST_ROOM)

    @property
    def next_stop(self) -> int:
        """A round adds one item at most."""
        return self.observations + self._state.room

    def after_round(self) -> None:
        """Keep at least as much room as there are items, so that stops are rare."""
        if self._state.room <= self._state.used[0]:
            self._state = with_room(self._state, 4 * len(self._state.shown))

    @property
    def labels_(self) -> Indices:
        """Everybody is served alike."""
        return np.zeros(self.problem.users, dtype=np.int64)

    @property
    def theta_(self) -> Floats:
        """No taste is learned."""
        return np.zeros((self.problem.users, self.problem.dim))
