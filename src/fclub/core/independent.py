"""Rounds of models that never exchange anything: every user belongs to a fixed model."""

from __future__ import annotations

from typing import NamedTuple

from fclub.core.compiling import compiled
from fclub.core.kernels import choose
from fclub.core.models import Models, learn, ridge_radius
from fclub.core.types import Indices, Matrix, Vector


class Independent(NamedTuple):
    """`alpha` is the failure probability of one model."""

    models: Models
    model_of: Indices
    ridge: float
    sigma_0: float
    alpha: float
    exploration: float


@compiled
def recommend(state: Independent, user: int, items: Matrix) -> int:
    """LinUCB (Abbasi-Yadkori et al. 2011) with the model of the user."""
    row = state.model_of[user]
    count, dim = float(state.models.counts[row]), items.shape[1]
    radius = ridge_radius(count, dim, state.ridge, state.sigma_0, state.alpha)
    return choose(items, state.models.theta[row], state.models.inverse[row], state.exploration * radius)


@compiled
def feedback(state: Independent, user: int, x: Vector, y: float) -> None:
    learn(state.models, state.model_of[user], x, y, state.ridge)
