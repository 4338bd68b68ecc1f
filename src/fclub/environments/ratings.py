"""The paper's pipeline on any ratings file: real users, random items, rewards from the model."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np

from fclub.config import require
from fclub.core.types import Floats
from fclub.environments.data.cache import Source, load_ratings, name_of
from fclub.environments.data.pipeline import clustered, densest, factors
from fclub.environments.vectors import VectorEnvironment


class RatedItems(VectorEnvironment):
    """Users of the densest `size` × `size` part of the ratings in `path`, `users` of them at random.

    `path` is a ratings file, a folder or archive with one, the name of a data set, or a data frame with
    columns user, item and rating. `clusters`: 0 leaves every user its own vector, k replaces them by
    the centroids of k-means.
    """

    name: ClassVar[str] = "ratings"
    own: ClassVar[tuple[str, ...]] = ("path", "clusters", "size")

    def __init__(
        self,
        path: Source = "movielens-latest-small",
        users: int = 40,
        clusters: int = 0,
        servers: int = 5,
        dim: int = 10,
        items: int = 10,
        placement: str = "blocks",
        size: int = 1000,
        visits: str = "uniform",
        newcomers: float = 0.0,
    ) -> None:
        super().__init__(users, servers, dim, items, placement, visits, newcomers)
        require(clusters >= 0, "clusters must be at least 0", clusters)
        ratings = load_ratings(path)
        self.path, self.clusters, self.size = name_of(path, ratings), clusters, size
        self._part = densest(ratings, size)

    @cached_property
    def _vectors(self) -> Floats:
        vectors = factors(self._part.matrix, self.problem.dim)[0]
        return clustered(vectors, self.clusters)[0] if self.clusters else vectors

    def _pool(self, rng: np.random.Generator) -> Floats:
        return self._vectors
