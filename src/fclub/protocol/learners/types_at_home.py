"""Users of a server with many of them: types that it learns at home, around the released population."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fclub.core.packing import flatten, inside, under
from fclub.core.plus.beliefs import PopulationPrior
from fclub.core.population.rounds import SURE, mix, share_of
from fclub.core.population.typed_rounds import evidence_of
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats, Indices, Vector
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Bound, State
from fclub.protocol.interfaces.overview import LocalOverview
from fclub.protocol.learners.population import PopulationLearner
from fclub.protocol.learners.types import Types

TRUST = 0.3
"""As prior of types a release counts as so many of the users that would say as much without noise."""

PRIOR_LEAD, REMEMBERED = -1.0, 0.6
"""Log odds of types when they begin to be learned, and what is left of others from phase to phase."""


class Border(NamedTuple):
    """From where on a server learns types: with so many users, or from so many observations on."""

    users: float
    observations: int = 1000

    @staticmethod
    def beside(known: float) -> Border:
        """Where a release says as much of all users as so many without noise would."""
        return Border(2.0 * known)


class TypesAtHome:
    """Learns types from the exact data of its users, with the released population as prior.

    Nothing of types leaves the server: its exchange has the `population`'s learner alone. Beyond the
    `border` users are served from both, each weighed by how well it has predicted their rewards: `lead`
    are the log odds of types, which fade from phase to phase. They are −∞ until a server learns types,
    and ∞ where nobody else releases anything: there is no border, and types are all there is to know.
    Types are shown if they led when the last phase began (`typed`).
    """

    supports = frozenset({FORGET, REPLACE})

    def __init__(self, population: PopulationLearner, types: Types, border: Border | None) -> None:
        self.population, self.types, self.border = population, types, border
        self.typed = border is None
        self.lead = np.full(1, np.inf if self.typed else -np.inf)

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
        lead = float(self.lead[0])
        if lead > SURE:
            return self.types.bound(row)
        served = self.population.bound(row, self._left)
        if lead >= -SURE:
            types = self.types.bound(row)
            mix(share_of(lead), types.theta, types.inverse, served.theta, served.inverse)
        return served

    def observe(self, row: int, x: Vector, y: float) -> None:
        if np.isfinite(self.lead[0]):
            means = self.types.bound(row).theta, self.population.bound(row, self._left).theta
            self.lead[0] += evidence_of(*means, x, y - self.types.centre)
        self.types.observe(row, x, y)
        self.population.count_visit()

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        if np.isfinite(self.lead[0]):
            means = self.types.bound(row).theta, self.population.bound(row, self._left).theta
            centre = self.types.centre
            self.lead[0] -= evidence_of(*means, x, old - centre)
            self.lead[0] += evidence_of(*means, x, new - centre)
        self.types.replace(row, x, old, new)

    def forget(self, row: int) -> None:
        self.types.forget(row)

    def ready(self) -> bool:
        """Whether it learns types already."""
        border, seen = self.border, self.types.observations
        return border is None or len(self.counts) >= border.users or seen >= border.observations

    def prepare(self) -> None:
        """A phase is about to begin."""
        if self.border is not None:
            gained = self.lead[0] - PRIOR_LEAD if np.isfinite(self.lead[0]) else 0.0
            self.typed = bool(self.lead[0] > 0.0)
            self.lead[0] = PRIOR_LEAD + REMEMBERED * gained
            self.types.expect(self._prior())

    def _prior(self) -> PopulationPrior:
        """The released population, unless the users' own data speak against it."""
        population, unit = self.population, self.population.model.unit
        if not population.known_users or population.odds[0] > 0.0:
            return PopulationPrior.of(self.types.rules)
        mean, covariance = population.population
        root = np.linalg.cholesky(covariance)
        return PopulationPrior(unit * mean, unit[:, None] * root, 1.0, TRUST * population.known_users)

    def labels(self) -> Indices:
        return self.types.labels() if self.typed else self.population.labels()

    def theta(self) -> Floats:
        lead = float(self.lead[0])
        if lead > SURE:
            return self.types.theta()
        theta = self.population.theta(self._left)
        if lead >= -SURE:
            theta += share_of(lead) * (self.types.theta() - theta)
        return theta

    def overview(self) -> list[LocalOverview]:
        return self.types.overview() if self.typed else self.population.overview()

    def state(self) -> State:
        arrays, values = self.population.state()
        own = {name: array for name, array in arrays.items() if not name.startswith("users.")}
        own["lead"] = self.lead
        types, numbers = self.types.state()
        known = {"known_users": self.population.known_users, "typed": self.typed}
        return own | under("types.", types), {"population": values, "types": numbers} | known

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.types.restore(inside("types.", arrays), values["types"])
        self.population.use(self.users)
        self.population.restore(arrays | flatten(self.users, "users."), values["population"])
        self.population.known_users, self.typed = values["known_users"], values["typed"]
        self.lead[:] = arrays["lead"]
        if self.border is not None:  # there was none before it was given a plan
            self.lead[:] = np.minimum(self.lead, SURE)
