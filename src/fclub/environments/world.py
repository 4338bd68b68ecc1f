"""Visits and rewards as kernels: the readable and the compiled loop draw them with the same code.

User and item vectors are a direction of norm 1/√2 beside a constant 1/√2.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import dot
from fclub.core.types import Floats, Indices, Matrix
from fclub.environments.arrivals import Arrivals, next_user

HALF = sqrt(0.5)
"""The constant last coordinate, and the norm of the rest: θᵀx is then in [0, 1]."""


def with_constant(rows: Floats, known: Any) -> Floats:
    """Rows scaled to norm 1/√2 beside the constant; a row that is not known keeps only that."""
    norms = np.linalg.norm(rows, axis=1)
    known = known & (norms > 0.0)
    vectors = np.zeros((rows.shape[0], rows.shape[1] + 1))
    vectors[known, :-1] = HALF * rows[known] / norms[known, None]
    vectors[:, -1] = HALF
    return vectors


DIRECTIONS, NON_NEGATIVE, CATALOGUE = 0, 1, 2
"""How items are drawn: a random direction beside a constant, a random non-negative direction, or
real items from a catalogue."""


class Catalogue(NamedTuple):
    """Real items: `features` (M, d), and for every user the items it may be offered.

    User u's candidates are positions starts[u] to starts[u+1] of `candidates` (item numbers) and
    `liked` (its reward for them). Drawing an offer shuffles them within the user's part: the first K
    are the offer.
    """

    features: Floats
    starts: Indices
    candidates: Indices
    liked: Floats


def no_catalogue() -> Catalogue:
    """What a world with random items has in its place."""
    none = np.zeros(0, dtype=np.int64)
    return Catalogue(np.zeros((0, 0)), none, none, np.zeros(0))


class World(NamedTuple):
    """What compiled code needs to play an environment: users' vectors and one generator per purpose."""

    kind: int
    theta: Floats
    arrivals: Arrivals
    items: np.random.Generator
    rewards: np.random.Generator
    catalogue: Catalogue


@compiled
def draw_user(world: World) -> int:
    """The next visitor."""
    return next_user(world.arrivals, world.theta.shape[0])


@inner
def _offer(world: World, user: int, items: Matrix) -> None:
    """K different candidates of this user: the first K steps of a shuffle."""
    shelf = world.catalogue
    first, end = shelf.starts[user], shelf.starts[user + 1]
    for k in range(items.shape[0]):
        here = first + k
        left = end - here
        other = here + int(min(world.items.random() * left, left - 1))
        item, liked = shelf.candidates[other], shelf.liked[other]
        shelf.candidates[other], shelf.liked[other] = shelf.candidates[here], shelf.liked[here]
        shelf.candidates[here], shelf.liked[here] = item, liked
        items[k] = shelf.features[item]


@compiled
def draw_items(world: World, user: int, items: Matrix) -> None:
    """Fill a (K, d) array with the items of one visit."""
    if world.kind == CATALOGUE:
        _offer(world, user, items)
        return
    count, d = items.shape
    free = d - 1 if world.kind == DIRECTIONS else d
    for k in range(count):
        square = 0.0
        for i in range(free):
            value = world.items.standard_normal()
            if world.kind == NON_NEGATIVE:
                value = abs(value)
            items[k, i] = value
            square += value * value
        scale = (HALF if world.kind == DIRECTIONS else 1.0) / sqrt(square)
        for i in range(free):
            items[k, i] *= scale
        if world.kind == DIRECTIONS:
            items[k, d - 1] = HALF


@inner
def _expected_reward(world: World, user: int, items: Matrix, index: int) -> float:
    """θᵀx, or whether the user liked the item."""
    if world.kind == CATALOGUE:
        return float(world.catalogue.liked[world.catalogue.starts[user] + index])
    return dot(world.theta[user], items[index])


@compiled
def regret_of(world: World, user: int, items: Matrix, index: int) -> float:
    """Expected reward of the best item minus that of the chosen one."""
    chosen = _expected_reward(world, user, items, index)
    best = chosen
    for k in range(items.shape[0]):
        best = max(best, _expected_reward(world, user, items, k))
    return best - chosen


@compiled
def draw_reward(world: World, user: int, items: Matrix, index: int) -> float:
    """A Bernoulli reward; one uniform number per visit, whatever was chosen."""
    return 1.0 if world.rewards.random() < _expected_reward(world, user, items, index) else 0.0
