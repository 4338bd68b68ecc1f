"""Rounds of the plus policies: users of large servers are served from types, others by a Gaussian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.kernels import choose
from fclub.core.plus import rounds
from fclub.core.plus.fading import fade_in
from fclub.core.plus.rounds import MixtureRound
from fclub.core.plus.type_model import TypeModel, serve
from fclub.core.statistics import Packed, observe
from fclub.core.types import Floats, Indices, Matrix, Vector


class PlusRound(NamedTuple):
    """All users of a federation; `model_of` is a row's place in `model`, below 0: it has a Gaussian.

    Where observations fade (`kept` < 1) users are served from what is left of them, `recent`.
    """

    gaussians: MixtureRound
    model: TypeModel
    model_of: Indices
    exploration: float
    recent: Packed
    kept: float


@compiled
def recommend_by_types(
    model: TypeModel,
    server: int,
    users: Packed,
    row: int,
    items: Matrix,
    exploration: float,
    most: float,
) -> int:
    """argmax of the mean of θᵀx given all of the user's data plus `exploration` deviations.

    No reward is larger than `most`.
    """
    d = items.shape[1]
    mean, covariance = np.empty(d), np.empty((d, d))
    serve(model, server, users.gram[row], users.moment[row], mean, covariance)
    return choose(items, mean, covariance, exploration, most)


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


@compiled
def recommend(state: PlusRound, user: int, items: Matrix) -> int:
    gaussians = state.gaussians
    row = gaussians.row_of[user]
    server = state.model_of[row]
    if server < 0:
        return rounds.recommend(gaussians, user, items)
    users = state.recent if state.kept < 1.0 else gaussians.users
    told = state.exploration, 1.0 - gaussians.centre
    return recommend_by_types(state.model, server, users, row, items, *told)


@compiled
def feedback(state: PlusRound, user: int, x: Vector, y: float) -> None:
    gaussians = state.gaussians
    row = gaussians.row_of[user]
    if state.model_of[row] < 0:
        rounds.feedback(gaussians, user, x, y)
    else:
        centred = y - gaussians.centre
        keep(gaussians.users, gaussians.squares, row, x, centred)
        if state.kept < 1.0:
            fade_in(state.recent, row, x, centred, state.kept)
