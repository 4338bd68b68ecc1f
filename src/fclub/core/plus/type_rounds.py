"""Rounds of the plus policies: users are served from types."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.items import NO_ITEMS, Shelf, choose_known, learn_item
from fclub.core.lattice import on_grid, snap
from fclub.core.plus.fading import fade_in
from fclub.core.plus.type_model import TypeModel, serve
from fclub.core.statistics import Packed, observe
from fclub.core.types import Floats, Indices, Matrix, Vector


class PlusRound(NamedTuple):
    """All users of a federation; `model_of` is the place of a row's server in `model`.

    `squares` is the sum of each user's squared rewards, from which `centre` is subtracted. With `grid`
    observations are rounded to the lattice where they are learned, and the last feature is then
    `constant` unless that is 0. Where observations fade (`kept` < 1) users are served from what is left
    of them, `recent`. Where items come again, their effects are learned on the shelf `items`.
    """

    users: Packed
    squares: Floats
    row_of: Indices
    model: TypeModel
    model_of: Indices
    exploration: float
    centre: float
    recent: Packed
    kept: float
    grid: bool
    constant: float
    items: Shelf = NO_ITEMS


@compiled
def know_user(
    model: TypeModel, server: int, users: Packed, row: int, mean: Vector, covariance: Matrix
) -> None:
    """Mean and covariance of the user's vector given all of its data."""
    serve(model, server, users.gram[row], users.moment[row], mean, covariance)


@compiled
def keep(users: Packed, squares: Floats, row: int, x: Vector, centred: float) -> None:
    """An observation of a user who is served from types needs nothing more than to be kept."""
    observe(users, row, x, centred)
    squares[row] += centred * centred


@compiled
def means_by_types(model: TypeModel, users: Packed, means: Floats) -> None:
    """The mean of every user's vector."""
    covariance = np.empty((means.shape[1], means.shape[1]))
    for row in range(means.shape[0]):
        serve(model, 0, users.gram[row], users.moment[row], means[row], covariance)


@inner
def _estimate(state: PlusRound, row: int, mean: Vector, covariance: Matrix) -> None:
    users = state.recent if state.kept < 1.0 else state.users
    know_user(state.model, state.model_of[row], users, row, mean, covariance)


@compiled
def recommend(state: PlusRound, user: int, items: Matrix) -> int:
    row, d = state.row_of[user], items.shape[1]
    mean, covariance = np.empty(d), np.empty((d, d))
    _estimate(state, row, mean, covariance)
    told = state.exploration, 1.0 - state.centre
    return choose_known(state.items, state.model_of[row], items, mean, covariance, *told)


@compiled
def feedback(state: PlusRound, user: int, x: Vector, y: float) -> None:
    row, centred = state.row_of[user], y - state.centre
    if state.items.table.shape[0] > 0:
        mean, covariance = np.empty(x.shape[0]), np.empty((x.shape[0], x.shape[0]))
        _estimate(state, row, mean, covariance)
        learn_item(state.items, state.model_of[row], x, mean, centred)
    if state.grid:
        keep(state.users, state.squares, row, snap(x, state.constant), on_grid(centred))
    else:
        keep(state.users, state.squares, row, x, centred)
    if state.kept < 1.0:
        fade_in(state.recent, row, x, centred, state.kept)
