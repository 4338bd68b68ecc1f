"""`random`: any item, each with the same probability."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.compiling import compiled
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.policies.base import KernelPolicy


class Dice(NamedTuple):
    """The number in [0, 1) that decides the next choice, and where the one after it comes from."""

    drawn: Floats
    generator: np.random.Generator


@compiled
def recommend(state: Dice, user: int, items: Matrix) -> int:
    count = items.shape[0]
    return int(min(state.drawn[0] * count, count - 1))


@compiled
def feedback(state: Dice, user: int, x: Vector, y: float) -> None:
    """Throw again; nothing is learned."""
    state.drawn[0] = state.generator.random()


class Random(KernelPolicy[Dice]):
    """Any item at random: what no policy should fall behind.

    >>> import fclub
    >>> fclub.simulate(fclub.Random(), "synthetic", rounds=500)
    <Trace of random in synthetic, seed 0: 500 rounds, regret ...>
    """

    rival = True
    kernels = (recommend, feedback)

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Dice:
        generator = np.random.default_rng(seed)
        return Dice(np.array([generator.random()]), generator)

    @property
    def theta_(self) -> Floats:
        """No taste is learned."""
        return np.zeros((self.problem.users, self.problem.dim))
