"""Rounds of servers some of which serve their users from types of their own, others from releases."""

from __future__ import annotations

from typing import NamedTuple

from fclub.core.compiling import compiled
from fclub.core.plus.fading import fade_in
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import keep, recommend_by_types
from fclub.core.population.rounds import PopulationRound, count_visit, recommend_from_releases
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats, Matrix, Vector


class TypedRound(NamedTuple):
    """Users and populations; by server the `model` of its types, and 1 where it serves from them.

    `squares` is the sum of each user's squared rewards. Where observations fade (`kept` < 1) users are
    served from what is left of them, `recent`.
    """

    population: PopulationRound
    squares: Floats
    model: TypeModel
    typed: Counts
    recent: Packed
    kept: float


@compiled
def recommend(state: TypedRound, user: int, items: Matrix) -> int:
    population = state.population
    row = population.row_of[user]
    server = population.server_of[row]
    users = state.recent if state.kept < 1.0 else population.users
    if state.typed[server] == 0:
        return recommend_from_releases(population, users, row, items)
    told = population.exploration, 1.0 - population.centre
    return recommend_by_types(state.model, server, users, row, items, *told)


@compiled
def feedback(state: TypedRound, user: int, x: Vector, y: float) -> None:
    population = state.population
    row = population.row_of[user]
    centred = y - population.centre
    keep(population.users, state.squares, row, x, centred)
    if state.kept < 1.0:
        fade_in(state.recent, row, x, centred, state.kept)
    count_visit(population, population.server_of[row])
