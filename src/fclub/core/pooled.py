"""Rounds of servers that serve all of their users from one Gaussian."""

from __future__ import annotations

from typing import NamedTuple

from fclub.core.compiling import compiled
from fclub.core.plus import rounds
from fclub.core.plus.rounds import MixtureRound
from fclub.core.types import Counts, Indices, Matrix, Vector


class Visitors(NamedTuple):
    """Observations by user, which is all that is kept apart."""

    counts: Counts

    def slice(self, start: int, stop: int) -> Visitors:
        """The same memory, fewer rows."""
        return Visitors(self.counts[start:stop])


class PooledRound(NamedTuple):
    """Users in rows, and one model by server; `models.row_of` is the place of a user's server."""

    visitors: Visitors
    row_of: Indices
    models: MixtureRound


@compiled
def recommend(state: PooledRound, user: int, items: Matrix) -> int:
    return rounds.recommend(state.models, user, items)


@compiled
def feedback(state: PooledRound, user: int, x: Vector, y: float) -> None:
    state.visitors.counts[state.row_of[user]] += 1
    rounds.feedback(state.models, user, x, y)
