"""Real items and real rewards: did the user like what it was shown?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fclub.config import require
from fclub.core.types import Flags, Floats
from fclub.environments.data.cache import Source, load_ratings, name_of
from fclub.environments.data.pipeline import clustered, densest, factors
from fclub.environments.vectors import DataEnvironment
from fclub.environments.world import CATALOGUE, Catalogue

FEATURES = ("rated", "liked")


@dataclass(frozen=True)
class Split:
    """Which entries of the users × items matrix are for training and which are held out."""

    training: Flags
    held_out: Flags


class Liked(DataEnvironment):
    """A visitor is offered items that it rated in reality, and the reward is whether it liked them.

    For each seed the ratings of the densest `size` × `size` part are split: a share `holdout` is kept
    for visits, the rest gives the items' features (right singular vectors, in the users' form), so that
    no rating serves both. Liked means a rating of at least `threshold` (None: the mean of the file).
    `features="rated"` factorises whether there is a training rating, as the paper's pipeline does;
    `"liked"` whether it is a like. Regret is against the best item on offer, often more than any linear
    model can reach. Nobody knows true clusters: `labels` group the users by k-means of their
    training vectors, or not at all if `clusters` is 0.
    """

    name: ClassVar[str] = "liked"
    own: ClassVar[tuple[str, ...]] = ("path", "clusters", "size", "threshold", "holdout", "features")

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
        threshold: float | None = None,
        holdout: float = 0.5,
        features: str = "rated",
        visits: str = "uniform",
        newcomers: float = 0.0,
    ) -> None:
        super().__init__(users, servers, dim, items, placement, visits, newcomers)
        require(clusters >= 0, "clusters must be at least 0", clusters)
        require(0.0 < holdout < 1.0, "holdout must be between 0 and 1", holdout)
        require(features in FEATURES, f"features must be one of {', '.join(FEATURES)}", features)
        ratings = load_ratings(path)
        self.path, self.clusters, self.size = name_of(path, ratings), clusters, size
        self.threshold, self.holdout, self.features = threshold, holdout, features
        self.part = densest(ratings, size)
        least = float(ratings.values.mean()) if threshold is None else threshold
        valued = ratings.matrix(binary=False)
        valued.data = (valued.data >= least).astype(np.float64)
        self.rated: Flags = self.part.matrix > 0.0
        self.likes: Floats = valued[self.part.users][:, self.part.items].toarray()

    @property
    def knows_clusters(self) -> bool:
        """Rewards are people's own, so nobody knows."""
        return False

    @property
    def _kind(self) -> int:
        return CATALOGUE

    def split(self, rng: np.random.Generator) -> Split:
        """Every rating goes to one side by the toss of a biased coin."""
        held_out = self.rated & (rng.random(self.rated.shape) < self.holdout)
        return Split(self.rated & ~held_out, held_out)

    def _draw_theta(self, rng: np.random.Generator) -> Floats:
        parts = self.split(rng)
        known = self.likes if self.features == "liked" else self.rated.astype(np.float64)
        vectors, self._features = factors(known * parts.training, self.problem.dim)
        enough = np.flatnonzero(parts.held_out.sum(axis=1) >= self.items)
        n = self.problem.users
        require(n <= len(enough), f"users must be at most {len(enough)}: others rated too few items", n)
        chosen = rng.permutation(enough)[:n]
        grouped = clustered(vectors, self.clusters)[0] if self.clusters else vectors
        chosen = chosen[self._number_users(grouped[chosen])]
        self._held_out, self._liked = parts.held_out[chosen], self.likes[chosen]
        return np.ascontiguousarray(vectors[chosen])

    def _catalogue(self) -> Catalogue:
        user, item = np.nonzero(self._held_out)
        starts = np.searchsorted(user, np.arange(self.problem.users + 1))
        return Catalogue(
            self._features, starts.astype(np.int64), item.astype(np.int64), self._liked[user, item]
        )
