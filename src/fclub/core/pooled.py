"""Rounds of servers that serve all of their users from one Gaussian."""

from __future__ import annotations

from typing import NamedTuple

from fclub.core.compiling import compiled
from fclub.core.kernels import add_scaled, choose, grow_inverse, multiply
from fclub.core.lattice import on_grid, snap
from fclub.core.statistics import Packed, observe
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector


class Visitors(NamedTuple):
    """Observations by user, which is all that is kept apart."""

    counts: Counts

    def slice(self, start: int, stop: int) -> Visitors:
        """The same memory, fewer rows."""
        return Visitors(self.counts[start:stop])


class Gaussians(NamedTuple):
    """What serves the users of each server: N(θ̂, C), kept as C, its information vector C⁻¹θ̂, and θ̂.

    `users` are the sums over all users of a server, and `squares` of their squared rewards. `row_of` is
    the place of a user's server. `weight` is one over the variance of a reward, or zero where choices
    must not depend on unreleased data; `centre` is subtracted from every reward. Observations are
    rounded to the lattice where they are learned, and the last feature is then `constant` unless that
    is 0.
    """

    users: Packed
    covariance: Floats
    vector: Floats
    theta: Floats
    squares: Floats
    row_of: Indices
    weight: Floats
    exploration: float
    centre: float
    constant: float


class PooledRound(NamedTuple):
    """Users in rows, and one model by server; `models.row_of` is the place of a user's server."""

    visitors: Visitors
    row_of: Indices
    models: Gaussians


@compiled
def recommend(state: PooledRound, user: int, items: Matrix) -> int:
    """argmax xᵀθ̂ + exploration·√(xᵀCx), where no reward is larger than 1."""
    models = state.models
    place, most = models.row_of[user], 1.0 - models.centre
    return choose(items, models.theta[place], models.covariance[place], models.exploration, most)


@compiled
def feedback(state: PooledRound, user: int, x: Vector, y: float) -> None:
    state.visitors.counts[state.row_of[user]] += 1
    learn(state.models, state.models.row_of[user], x, y)


@compiled
def learn(models: Gaussians, place: int, x: Vector, y: float) -> None:
    """Keep the observation, and condition the Gaussian of this server on it."""
    x, centred, weight = snap(x, models.constant), on_grid(y - models.centre), models.weight[place]
    observe(models.users, place, x, centred)
    models.squares[place] += centred * centred
    if weight > 0.0:
        grow_inverse(models.covariance[place], x, weight)
        add_scaled(models.vector[place], x, weight * centred)
        multiply(models.covariance[place], models.vector[place], models.theta[place])
