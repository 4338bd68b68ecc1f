"""Users served from types: what a server with many users does between phases."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from fclub.core.plus.beliefs import Beliefs, TypeRules
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import know_user, means_by_types, recommend_by_types
from fclub.core.statistics import Packed, Statistics
from fclub.core.types import Counts, Floats, Indices, Labels, Matrix, Vector
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.plus.people import Crowd, People
from fclub.protocol.seam import Bound


class TypeServing(ABC):
    """Chooses items for users from what it believes of the types and from each user's own data.

    Users may be a slice of a federation's arrays. Where observations fade (`kept` < 1), they are served
    from what is left of them.
    """

    def __init__(
        self, crowd: Crowd, rules: TypeRules, exploration: float, domain: Domain, kept: float
    ) -> None:
        self.people = People(crowd, rules.types, kept)
        self.rules, self.exploration, self.domain = rules, exploration, domain
        self.centre = CENTRE if domain.constant is not None else 0.0
        self.model = TypeModel.zeros(1, rules.types, rules.dim)
        self.beliefs = self._first()
        self._believe(self.beliefs)

    @abstractmethod
    def _first(self) -> Beliefs:
        """What a new server believes."""

    @abstractmethod
    def _believe(self, beliefs: Beliefs) -> None:
        """Serve from these."""

    @property
    def users(self) -> Packed:
        return self.people.users

    @property
    def labels(self) -> Labels:
        return self.people.labels

    @property
    def counts(self) -> Counts:
        return self.people.counts

    @property
    @abstractmethod
    def served_by(self) -> Indices:
        """Places of the types that users are most probably of."""

    @property
    def theta(self) -> Floats:
        """Estimates of rewards as they are; what was learned from are centred ones."""
        theta = np.empty_like(self.users.moment)
        means_by_types(self.model, self.people.serving, theta)
        if self.domain.constant is not None:
            theta[:, -1] += CENTRE / self.domain.constant
        return theta

    @abstractmethod
    def add_user(self) -> int:
        """A user of whom nothing is known is served by what is known of all."""

    def recommend(self, row: int, items: Matrix) -> int:
        told = self.exploration, 1.0 - self.centre
        return recommend_by_types(self.model, 0, self.people.serving, row, items, *told)

    def observe(self, row: int, x: Vector, y: float) -> None:
        self.people.observe(row, x, y - self.centre)

    def bound(self, row: int) -> Bound:
        mean, covariance = np.empty(self.rules.dim), np.empty((self.rules.dim, self.rules.dim))
        know_user(self.model, 0, self.people.serving, row, mean, covariance)
        return Bound(mean, covariance, self.exploration, self.centre, 1.0 - self.centre)

    def stored(self, row: int) -> Statistics:
        return Statistics.of(self.users, row).copy()

    @property
    def by_user(self) -> tuple[str, ...]:
        return self.people.by_user
