"""Rounds of servers some of which serve their users from types, and others from the population."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.items import NO_ITEMS, Shelf, choose_known, learn_item
from fclub.core.plus.fading import fade_in
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import keep, know_user
from fclub.core.population.rounds import PopulationRound, count_visit, serve
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats, Matrix, Vector


class TypedRound(NamedTuple):
    """Users and populations; by server the `model` of its types, and 1 where it serves from them.

    `squares` is the sum of each user's squared rewards. Where observations fade (`kept` < 1) users are
    served from what is left of them, `recent`. Where items come again, their effects are learned on the
    shelf `items`.
    """

    population: PopulationRound
    squares: Floats
    model: TypeModel
    typed: Counts
    recent: Packed
    kept: float
    items: Shelf = NO_ITEMS


@inner
def _estimate(state: TypedRound, server: int, row: int, mean: Vector, covariance: Matrix) -> None:
    population = state.population
    users = state.recent if state.kept < 1.0 else population.users
    if state.typed[server] == 0:
        own = users.gram[row], users.moment[row]
        known = population.start, population.released, population.odds[server]
        serve(*known, *own, mean, covariance)
    else:
        know_user(state.model, server, users, row, mean, covariance)


@compiled
def recommend(state: TypedRound, user: int, items: Matrix) -> int:
    population, d = state.population, items.shape[1]
    row = population.row_of[user]
    server = population.server_of[row]
    mean, covariance = np.empty(d), np.empty((d, d))
    _estimate(state, server, row, mean, covariance)
    told = population.exploration, 1.0 - population.centre
    return choose_known(state.items, server, items, mean, covariance, *told)


@compiled
def feedback(state: TypedRound, user: int, x: Vector, y: float) -> None:
    population = state.population
    row = population.row_of[user]
    server = population.server_of[row]
    centred = y - population.centre
    if state.items.table.shape[0] > 0:
        mean, covariance = np.empty(x.shape[0]), np.empty((x.shape[0], x.shape[0]))
        _estimate(state, server, row, mean, covariance)
        learn_item(state.items, server, x, mean, centred)
    keep(population.users, state.squares, row, x, centred)
    if state.kept < 1.0:
        fade_in(state.recent, row, x, centred, state.kept)
    count_visit(population, server)
