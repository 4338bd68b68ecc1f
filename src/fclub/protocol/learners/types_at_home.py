"""Users of a server with many of them: types that it learns at home, around the released population."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fclub.core.packing import flatten, inside, under
from fclub.core.plus.beliefs import PopulationPrior
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats, Indices, Vector
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Bound, State
from fclub.protocol.interfaces.overview import LocalOverview
from fclub.protocol.learners.population import PopulationLearner
from fclub.protocol.learners.types import Types

LEAST_USERS = 200.0
"""Fewer tell types too slowly for it to be sure that serving from them at once pays."""


class Border(NamedTuple):
    """From where on a server serves its users from types: before, the released population knows more.

    With so many `users` it does so from its first phase on. One with fewer learns types from `learned`
    observations on, and serves from them once it has `served` ones and, on average, so many `visits` of
    each user.
    """

    users: float
    learned: int = 1000
    served: int = 4000
    visits: int = 20

    @staticmethod
    def beside(known: float) -> Border:
        """Where a release says as much of all users as so many without noise would."""
        return Border(max(LEAST_USERS, 2.0 * known))


class TypesAtHome:
    """Learns types from the exact data of its users, with the released population as prior.

    Nothing of types leaves the server: its exchange has the `population`'s learner alone. Users are
    served from types beyond the `border`; where nobody else releases anything there is none, and types
    are all there is to know. `typed` tells whether they are; once they are they stay so.
    """

    supports = frozenset({FORGET, REPLACE})

    def __init__(self, population: PopulationLearner, types: Types, border: Border | None) -> None:
        self.population, self.types, self.border = population, types, border
        self.typed = border is None

    def _serves(self) -> bool:
        border, users, seen = self.border, len(self.counts), self.types.observations
        if border is None or users >= border.users:
            return True
        return seen >= max(border.served, border.visits * users)

    @property
    def users(self) -> Packed:
        return self.types.users

    @property
    def counts(self) -> Counts:
        return self.population.counts

    @property
    def _left(self) -> Packed:
        """What users are served from; contributions are made of all of their data."""
        return self.types.people.serving

    @property
    def by_user(self) -> tuple[str, ...]:
        return tuple(under("types.", dict.fromkeys(self.types.by_user)))

    def add_user(self) -> int:
        row = self.types.add_user()
        self.population.use(self.users)
        return row

    def bound(self, row: int) -> Bound:
        return self.types.bound(row) if self.typed else self.population.bound(row, self._left)

    def observe(self, row: int, x: Vector, y: float) -> None:
        self.types.observe(row, x, y)
        self.population.count_visit()

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        self.types.replace(row, x, old, new)

    def forget(self, row: int) -> None:
        self.types.forget(row)

    def ready(self) -> bool:
        """Whether it learns types already."""
        border, seen = self.border, self.types.observations
        return border is None or len(self.counts) >= border.users or seen >= border.learned

    def prepare(self) -> None:
        """A phase is about to begin."""
        self.typed |= self._serves()
        if self.border is not None:
            self.types.expect(self._prior())

    def _prior(self) -> PopulationPrior:
        """The released population, unless the users' own data speak against it."""
        population, unit = self.population, self.population.model.unit
        if not population.known_users or population.odds[0] > 0.0:
            return PopulationPrior.of(self.types.rules)
        mean, covariance = population.population
        root = np.linalg.cholesky(covariance)
        return PopulationPrior(unit * mean, unit[:, None] * root, 1.0, population.known_users)

    def labels(self) -> Indices:
        return self.types.labels() if self.typed else self.population.labels()

    def theta(self) -> Floats:
        return self.types.theta() if self.typed else self.population.theta(self._left)

    def overview(self) -> list[LocalOverview]:
        return self.types.overview() if self.typed else self.population.overview()

    def state(self) -> State:
        arrays, values = self.population.state()
        own = {name: array for name, array in arrays.items() if not name.startswith("users.")}
        types, numbers = self.types.state()
        known = {"known_users": self.population.known_users, "typed": self.typed}
        return own | under("types.", types), {"population": values, "types": numbers} | known

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.types.restore(inside("types.", arrays), values["types"])
        self.population.use(self.users)
        self.population.restore(arrays | flatten(self.users, "users."), values["population"])
        self.population.known_users, self.typed = values["known_users"], values["typed"]
