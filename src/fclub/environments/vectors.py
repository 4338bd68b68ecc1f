"""Environments whose users come from data: some of many, drawn anew for each seed.

`RatedItems` is the paper's pipeline on any ratings file: real users, random items, rewards from the
model.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np

from fclub.config import Dim, Problem, Servers, Users, require
from fclub.core.types import Floats, Indices
from fclub.environments.base import (
    Items,
    LinearEnvironment,
    Newcomers,
    Placement,
    Visits,
    place,
)
from fclub.environments.data.cache import Source, load_ratings, name_of
from fclub.environments.data.pipeline import clustered, densest, distinct, factors
from fclub.environments.world import DIRECTIONS, HALF
from fclub.parameters import checked, meaning
from fclub.values import Parameter

RatingsSource = Annotated[
    Source,
    meaning(
        "ratings: a file, a folder or archive with one, the name of a data set, or a data frame with "
        "columns user, item and rating"
    ),
]
Groups = Annotated[
    int, meaning("k: users are grouped by k-means; 0: every user has its own vector", least=0)
]
Size = Annotated[int, meaning("number of items taken from the file", least=1)]


class DataEnvironment(LinearEnvironment):
    """Users are numbered so that those of a cluster follow each other.

    `blocks` then puts few clusters on a server, and `spread` deals each cluster out over all servers.
    `own` names the parameters that a subclass adds, which it keeps as attributes.
    """

    own: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        users: Users,
        servers: Servers,
        dim: Dim,
        items: Items,
        placement: Placement,
        visits: Visits,
        newcomers: Newcomers,
    ) -> None:
        require(dim >= 2, "dim must be at least 2", dim)
        self.problem = Problem(users, servers, dim, HALF)
        self.items, self.placement = items, placement
        self.server_of = place(users, servers, placement)
        self._set_arrivals(visits, newcomers)

    def get_params(self) -> dict[str, Parameter]:
        common: dict[str, Parameter] = {
            "users": self.problem.users,
            "servers": self.problem.servers,
            "dim": self.problem.dim,
            "items": self.items,
            "placement": self.placement,
            "visits": self.visits,
            "newcomers": self.newcomers,
        }
        return common | {name: getattr(self, name) for name in self.own}

    @property
    def distinct_users(self) -> int:
        """The number of different vectors, known once started."""
        return len(np.unique(self.labels))

    @property
    def knows_clusters(self) -> bool:
        """True if some users have exactly the same vector; where all differ, no clusters are known."""
        return self.distinct_users < self.problem.users

    def _number_users(self, vectors: Floats) -> Indices:
        """Order users by cluster (exactly equal vectors are one cluster), and set `labels`."""
        order = np.argsort(distinct(vectors), kind="stable")
        self.labels = distinct(vectors[order])
        return order


class VectorEnvironment(DataEnvironment):
    """θ are rows of a pool; items are random directions, as in the authors' synthetic set."""

    @property
    def _kind(self) -> int:
        return DIRECTIONS

    @abstractmethod
    def _pool(self, rng: np.random.Generator) -> Floats:
        """All vectors that users may be drawn from."""

    def _choose(self, count: int, rng: np.random.Generator) -> Indices:
        """Which rows of the pool are this run's users."""
        return rng.permutation(count)[: self.problem.users]

    def _draw_theta(self, rng: np.random.Generator) -> Floats:
        pool = self._pool(rng)
        users = self.problem.users
        require(users <= len(pool), f"users must be at most {len(pool)} for this data", users)
        theta = pool[self._choose(len(pool), rng)]
        return np.ascontiguousarray(theta[self._number_users(theta)])


class RatedItems(VectorEnvironment):
    """Users of the densest `size` × `size` part of the ratings in `path`, `users` of them at random."""

    name: ClassVar[str] = "ratings"
    own: ClassVar[tuple[str, ...]] = ("path", "clusters", "size")

    @checked
    def __init__(
        self,
        path: RatingsSource = "movielens-latest-small",
        users: Users = 40,
        clusters: Groups = 0,
        servers: Servers = 5,
        dim: Dim = 10,
        items: Items = 10,
        placement: Placement = "blocks",
        size: Size = 1000,
        visits: Visits = "uniform",
        newcomers: Newcomers = 0.0,
    ) -> None:
        super().__init__(users, servers, dim, items, placement, visits, newcomers)
        ratings = load_ratings(path)
        self.path, self.clusters, self.size = name_of(path, ratings), clusters, size
        self._part = densest(ratings, size)

    @cached_property
    def _vectors(self) -> Floats:
        vectors = factors(self._part.matrix, self.problem.dim)[0]
        return clustered(vectors, self.clusters)[0] if self.clusters else vectors

    def _pool(self, rng: np.random.Generator) -> Floats:
        return self._vectors
