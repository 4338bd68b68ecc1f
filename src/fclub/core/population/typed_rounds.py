"""Rounds of servers that serve their users from the population, from types, or from both."""

from __future__ import annotations

from math import isinf
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.items import NO_ITEMS, Shelf, choose_known, learn_item
from fclub.core.kernels import dot
from fclub.core.plus.fading import fade_in
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import keep, know_user
from fclub.core.population.model import VARIANCE
from fclub.core.population.rounds import SURE, PopulationRound, count_visit, mix, serve, share_of
from fclub.core.statistics import Packed
from fclub.core.types import Floats, Matrix, Vector


class TypedRound(NamedTuple):
    """Users and populations; by server the `model` of its types, and their log odds, `lead`.

    Where these are infinite users are served from types alone, or from the population alone; otherwise
    from both, and `lead` follows from how well each predicts. `squares` is the sum of each user's
    squared rewards. Where observations fade (`kept` < 1) users are served from what is left of them,
    `recent`. Where items come again, their effects are learned on the shelf `items`.
    """

    population: PopulationRound
    squares: Floats
    model: TypeModel
    lead: Floats
    recent: Packed
    kept: float
    items: Shelf = NO_ITEMS


@inner
def _from_types(state: TypedRound, server: int, row: int, mean: Vector, covariance: Matrix) -> None:
    users = state.recent if state.kept < 1.0 else state.population.users
    know_user(state.model, server, users, row, mean, covariance)


@inner
def _from_population(
    state: TypedRound, server: int, row: int, mean: Vector, covariance: Matrix
) -> None:
    population = state.population
    users = state.recent if state.kept < 1.0 else population.users
    own = users.gram[row], users.moment[row]
    serve(population.start, population.released, population.odds[server], *own, mean, covariance)


@inner
def _estimate(state: TypedRound, server: int, row: int, mean: Vector, covariance: Matrix) -> None:
    lead, d = state.lead[server], mean.shape[0]
    if lead > SURE:
        _from_types(state, server, row, mean, covariance)
        return
    _from_population(state, server, row, mean, covariance)
    if lead >= -SURE:
        first, inside = np.empty(d), np.empty((d, d))
        _from_types(state, server, row, first, inside)
        mix(share_of(lead), first, inside, mean, covariance)


@compiled
def evidence_of(first: Vector, other: Vector, x: Vector, y: float) -> float:
    """Of a reward: by how much its log likelihood is higher if the first is right."""
    wrong, more = y - dot(first, x), y - dot(other, x)
    return (more * more - wrong * wrong) / (2.0 * VARIANCE)


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
    population, d = state.population, x.shape[0]
    row = population.row_of[user]
    server = population.server_of[row]
    centred, mean, covariance = y - population.centre, np.empty(d), np.empty((d, d))
    if state.items.table.shape[0] > 0:
        _estimate(state, server, row, mean, covariance)
        learn_item(state.items, server, x, mean, centred)
    if not isinf(state.lead[server]):
        first = np.empty(d)
        _from_types(state, server, row, first, covariance)
        _from_population(state, server, row, mean, covariance)
        state.lead[server] += evidence_of(first, mean, x, centred)
    keep(population.users, state.squares, row, x, centred)
    if state.kept < 1.0:
        fade_in(state.recent, row, x, centred, state.kept)
    count_visit(population, server)
