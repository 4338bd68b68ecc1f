"""Rounds of the mixture policies: one Gaussian per user, refined by the user's own rewards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.kernels import add_scaled, choose, grow_inverse, multiply
from fclub.core.lattice import on_grid, snap
from fclub.core.statistics import Packed, observe, replace_reward
from fclub.core.types import Floats, Indices, Matrix, Vector


class MixtureRound(NamedTuple):
    """What serves each user: a Gaussian N(θ̂, C), kept as C, its information vector C⁻¹θ̂, and θ̂.

    `squares` is the sum of each user's squared rewards, from which their variance is learned.
    `weight` is one over the variance of a user's rewards, or zero where choices must not depend on
    unreleased data; `centre` is subtracted from every reward. With `grid` observations are rounded to
    the lattice where they are learned, and the last feature is then `constant` unless that is 0.
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
    grid: bool = False
    constant: float = 0.0

    def slice(self, start: int, stop: int) -> MixtureRound:
        """The same memory, fewer rows, which are called 0, 1, … here."""
        return self._replace(
            users=self.users.slice(start, stop),
            covariance=self.covariance[start:stop],
            vector=self.vector[start:stop],
            theta=self.theta[start:stop],
            squares=self.squares[start:stop],
            weight=self.weight[start:stop],
            row_of=np.arange(stop - start),
        )


@compiled
def recommend(state: MixtureRound, user: int, items: Matrix) -> int:
    """argmax xᵀθ̂ + exploration·√(xᵀCx), where no reward is larger than 1."""
    row, most = state.row_of[user], 1.0 - state.centre
    return choose(items, state.theta[row], state.covariance[row], state.exploration, most)


@compiled
def feedback(state: MixtureRound, user: int, x: Vector, y: float) -> None:
    """Keep the observation, and condition the user's Gaussian on it."""
    row, centred = state.row_of[user], y - state.centre
    if state.grid:
        _learn(state, row, snap(x, state.constant), on_grid(centred))
    else:
        _learn(state, row, x, centred)


@compiled
def _learn(state: MixtureRound, row: int, x: Vector, centred: float) -> None:
    observe(state.users, row, x, centred)
    state.squares[row] += centred * centred
    weight = state.weight[row]
    if weight > 0.0:
        grow_inverse(state.covariance[row], x, weight)
        add_scaled(state.vector[row], x, weight * centred)
        multiply(state.covariance[row], state.vector[row], state.theta[row])


def condition(state: MixtureRound, rows: Indices, part: Packed) -> None:
    """Condition these users' Gaussians on data that are kept already, as `feedback` does one by one."""
    weight = state.weight[rows]
    precision = np.linalg.inv(state.covariance[rows]) + weight[:, None, None] * part.gram
    covariance = np.linalg.inv(precision)
    state.covariance[rows] = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    state.vector[rows] += weight[:, None] * part.moment
    state.theta[rows] = np.einsum("uij,uj->ui", state.covariance[rows], state.vector[rows])


def replace(state: MixtureRound, row: int, x: Vector, old: float, new: float) -> None:
    """Another reward in the place of one that was learned: the Gaussian moves accordingly."""
    old, new = old - state.centre, new - state.centre
    if state.grid:
        x, old, new = snap(x, state.constant), on_grid(old), on_grid(new)
    change = replace_reward(state.users, state.squares, row, x, old, new)
    state.vector[row] += state.weight[row] * change
    state.theta[row] = state.covariance[row] @ state.vector[row]


def clear(state: MixtureRound, row: int, prior: Matrix) -> None:
    """Nothing is known of this user any more; `prior` is a precision."""
    state.users.clear(row)
    state.squares[row], state.vector[row], state.theta[row] = 0.0, 0.0, 0.0
    state.covariance[row] = np.linalg.inv(prior)
