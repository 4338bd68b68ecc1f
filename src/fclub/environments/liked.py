"""Real items and real rewards: did the user like what it was shown?"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fclub.config import Dim, Servers, require
from fclub.core.types import Flags, Floats, Indices
from fclub.environments.base import Items, Newcomers, Placement, Visits
from fclub.environments.data.cache import load_ratings, name_of
from fclub.environments.data.pipeline import clustered, most_rated, sparse_factors, sparse_vectors
from fclub.environments.vectors import DataEnvironment, Duplicates, Groups, RatingsSource, Size
from fclub.environments.world import CATALOGUE, Catalogue
from fclub.parameters import checked, meaning

MARK = 1e-6
"""How far the features of items without a rating are from 0, in every coordinate."""


class Liked(DataEnvironment):
    """A visitor is offered items that it rated in reality, and the reward is whether it liked them.

    Items are the `size` most rated ones, and users those who rated `enough` of them. For each seed, a
    share `holdout` of every such user's ratings is kept for visits. The others, with those of all who
    rated less, give the items' features, so that no rating serves both: right singular vectors, in the
    users' form, then what everybody thinks of the item (`quality`), then the constant. A share `fresh`
    of the items has no training ratings, so that all its features but the constant are about 0. Regret
    is against the best item on offer, often more than any linear model can reach. True clusters are
    not known: `labels` group the users by k-means of their training vectors.

    Ratings stay sparse: memory and the time of a start grow with their number, not with users × items.
    """

    name: ClassVar[str] = "liked"
    own: ClassVar[tuple[str, ...]] = (
        *("path", "clusters", "size", "enough", "threshold", "holdout", "features", "quality"),
        *("duplicates", "fresh"),
    )

    @checked
    def __init__(
        self,
        path: RatingsSource = "movielens-latest-small",
        users: Annotated[
            int,
            meaning("number of users, drawn from those who rated enough; null: all", least=1),
        ]
        | None = 40,
        clusters: Groups = 0,
        servers: Servers = 5,
        dim: Dim = 10,
        items: Items = 10,
        placement: Placement = "blocks",
        size: Size = 1000,
        enough: Annotated[
            int,
            meaning("ratings that a user must have; null: as many as the held-out share needs"),
        ]
        | None = None,
        threshold: Annotated[
            float, meaning("least rating that counts as liked; null: the mean of the file", "rating")
        ]
        | None = None,
        holdout: Annotated[
            float, meaning("share of a user's ratings that is kept for visits", above=0, below=1)
        ] = 0.5,
        features: Annotated[
            Literal["rated", "liked"],
            meaning("what is factorised: whether there is a training rating, or whether it is a like"),
        ] = "rated",
        quality: Annotated[
            bool, meaning("an item's like rate in the training ratings is one of its features")
        ] = True,
        duplicates: Duplicates = "refuse",
        fresh: Annotated[
            float, meaning("share of the items that nobody has rated before", least=0, below=1)
        ] = 0.0,
        visits: Visits = "uniform",
        newcomers: Newcomers = 0.0,
    ) -> None:
        least = ceil(items / holdout) if enough is None else enough
        require(least >= items, f"enough must be at least the {items} items of an offer", enough)
        ratings = load_ratings(path, duplicates)
        self.path, self.clusters, self.size = name_of(path, ratings), clusters, size
        self.enough, self.threshold, self.holdout = enough, threshold, holdout
        self.features, self.quality, self.fresh = features, quality, fresh
        self.duplicates = duplicates
        self.rated = most_rated(ratings, size)
        line = float(ratings.values.mean()) if threshold is None else threshold
        self.likes: Flags = self.rated.data >= line
        self.counts: Indices = np.diff(self.rated.indptr).astype(np.int64)
        self.eligible: Indices = np.flatnonzero(self.counts >= least)
        most = len(self.eligible)
        n = most if users is None else users
        require(n <= most, f"users must be at most {most}: others rated too few items", users)
        super().__init__(n, servers, dim, items, placement, visits, newcomers)
        self.problem = replace(self.problem, items=self.rated.shape[1])

    @property
    def knows_clusters(self) -> bool:
        """False: rewards are people's own, and no model made them."""
        return False

    @property
    def _kind(self) -> int:
        return CATALOGUE

    def hold_out(self, rng: np.random.Generator) -> Flags:
        """Which of the stored ratings are kept for visits: of eligible users only, at random."""
        share = np.round(self.holdout * self.counts).astype(np.int64)
        kept = np.zeros_like(self.counts)
        kept[self.eligible] = np.maximum(share, self.items)[self.eligible]
        row = np.repeat(np.arange(len(self.counts)), self.counts)
        shuffled = np.lexsort((rng.random(len(row)), row))
        place = np.arange(len(row)) - self.rated.indptr[row]
        held_out = np.zeros(len(row), dtype=np.bool_)
        held_out[shuffled] = place < kept[row]
        return held_out

    def _with(self, values: Any) -> Any:
        """The sparse matrix of these values in the places of the ratings; zeros are left out."""
        matrix = self.rated.copy()
        matrix.data = np.asarray(values, dtype=np.float64)
        matrix.eliminate_zeros()
        return matrix

    def _draw_theta(self, rng: np.random.Generator) -> Floats:
        held_out, dim, count = self.hold_out(rng), self.problem.dim, self.rated.shape[1]
        fresh = np.zeros(count, dtype=np.bool_)
        if self.fresh:
            fresh[rng.permutation(count)[: round(self.fresh * count)]] = True
        training = ~held_out & ~fresh[self.rated.indices]
        known = self.likes if self.features == "liked" else np.ones_like(self.likes)
        matrix = self._with(known & training)
        if self.quality:
            shown = np.bincount(self.rated.indices[training], minlength=count)
            liked = np.bincount(self.rated.indices[self.likes & training], minlength=count)
            vectors, self._features = sparse_vectors(matrix, liked, shown, dim)
        else:
            vectors, self._features = sparse_factors(matrix, dim)
        # A direction too short to say anything: policies know an item by its features.
        self._features[fresh, :-1] = MARK * rng.standard_normal((int(fresh.sum()), dim - 1))
        chosen = rng.permutation(self.eligible)[: self.problem.users]
        grouped = clustered(vectors[chosen], self.clusters)[0] if self.clusters else vectors[chosen]
        chosen = chosen[self._number_users(grouped)]
        # 2 stands for a like and 1 for none, since a sparse matrix does not keep zeros.
        self._offers = self._with(held_out * (1.0 + self.likes))[chosen]
        return np.ascontiguousarray(vectors[chosen])

    def _catalogue(self) -> Catalogue:
        offers = self._offers
        return Catalogue(
            self._features,
            offers.indptr.astype(np.int64),
            offers.indices.astype(np.int64),
            offers.data - 1.0,
        )
