"""Rounds of servers some of which serve their users from types, and others from the population."""

from __future__ import annotations

from typing import NamedTuple

from fclub.core.compiling import compiled
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import keep, recommend_by_types
from fclub.core.population import rounds
from fclub.core.population.rounds import PopulationRound, count_visit
from fclub.core.types import Counts, Floats, Matrix, Vector


class TypedRound(NamedTuple):
    """Users and populations; by server the `model` of its types, and 1 where it serves from them.

    `squares` is the sum of each user's squared rewards.
    """

    population: PopulationRound
    squares: Floats
    model: TypeModel
    typed: Counts


@compiled
def recommend(state: TypedRound, user: int, items: Matrix) -> int:
    population = state.population
    row = population.row_of[user]
    server = population.server_of[row]
    if state.typed[server] == 0:
        return rounds.recommend(population, user, items)
    told = population.exploration, 1.0 - population.centre
    return recommend_by_types(state.model, server, population.users, row, items, *told)


@compiled
def feedback(state: TypedRound, user: int, x: Vector, y: float) -> None:
    population = state.population
    row = population.row_of[user]
    keep(population.users, state.squares, row, x, y - population.centre)
    count_visit(population, population.server_of[row])
