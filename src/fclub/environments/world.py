"""Visits and rewards as kernels: the readable and the compiled loop draw them with the same code."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.kernels import dot
from fclub.core.types import Floats, Matrix, Vector

DIRECTIONS, NON_NEGATIVE = 0, 1
"""How items are drawn: a random direction beside a constant, or a random non-negative direction."""

HALF = sqrt(0.5)
"""The constant last feature of an item, and the norm of the rest of it."""


class World(NamedTuple):
    """What compiled code needs to play an environment: users' vectors and one generator per purpose."""

    kind: int
    theta: Floats
    arrivals: np.random.Generator
    items: np.random.Generator
    rewards: np.random.Generator


@compiled
def draw_user(world: World) -> int:
    """Users arrive uniformly."""
    n = world.theta.shape[0]
    return int(min(world.arrivals.random() * n, n - 1))


@compiled
def draw_items(world: World, items: Matrix) -> None:
    """Fill a (K, d) array with the items of one visit."""
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


@compiled
def regret_of(world: World, user: int, items: Matrix, index: int) -> float:
    """Expected reward of the best item minus that of the chosen one."""
    chosen = dot(world.theta[user], items[index])
    best = chosen
    for k in range(items.shape[0]):
        best = max(best, dot(world.theta[user], items[k]))
    return best - chosen


@compiled
def draw_reward(world: World, user: int, x: Vector) -> float:
    """A Bernoulli reward; one uniform number per visit, whatever was chosen."""
    return 1.0 if world.rewards.random() < dot(world.theta[user], x) else 0.0
