"""Environments whose users come from data: some of many, drawn anew for each seed.

`RatedItems` is the paper's pipeline on any ratings file: real users, random items, rewards from the
model. `Arrays` and the published data sets take user vectors from .npy files.

What the published files are, found by looking into them:

| file | rows × d | content |
|---|---|---|
| ml_1000user_d10.npy | 1000 × 10 | MovieLens, every user replaced by one of 10 centroids |
| ml_1000user_d10_tmp.npy | 500 × 10 | MovieLens, the 500 most active users, each its own vector |
| yelp_1000user_d10.npy | 1000 × 10 | Yelp, each user its own vector |
| yelp_1000user_d10_m10.npy, …_m4.npy | 1000 × 10 | the means of those by k-means, 10 and 4 clusters |
| 10_theta.npy, m_theta.npy, 60_theta.npy, … | n × d | synthetic users, equal numbers of 2 to 10 θ |

Rows are in order of activity. In rows 0–39 of the clustered MovieLens array there are 6 different
vectors, 31 users sharing one: not the m=4 of the paper. The MovieLens centroids are not means of the
500 unclustered vectors, which come from another factorisation.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

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
from fclub.environments.data.cache import Source, data_folders, load_ratings, name_of
from fclub.environments.data.pipeline import clustered, densest, distinct, factors, random_part
from fclub.environments.world import DIRECTIONS, HALF
from fclub.errors import DataMissing, InvalidFile
from fclub.parameters import Parameter, checked, meaning

RatingsSource = Annotated[
    Source,
    meaning(
        "ratings: a file, a folder or archive with one, the name of a data set, or a data frame with "
        "columns user, item and rating"
    ),
]
Duplicates = Annotated[
    Literal["refuse", "last"],
    meaning("what becomes of a user's ratings of one item. last: the last of them counts"),
]
Groups = Annotated[
    int, meaning("k: users are grouped by k-means; 0: every user has its own vector", least=0)
]
Variant = Annotated[
    Literal["printed", "clustered", "clustered4", "users", "top40"],
    meaning(
        "where the users come from. printed: as the paper's text says, `size` random users and items "
        "of the ratings are factorised, and `users` of them drawn, all for each seed anew. clustered: "
        "random rows of the published array in which every user is one of 10 centroids. clustered4: of "
        "the one with 4 centroids, which only yelp has. users: of the one in which each user has its "
        "own vector. top40: the first rows of the array of `clustered`, as in the published code"
    ),
]
PublishedPath = (
    Annotated[
        str,
        meaning(
            "printed: a ratings file, or the name of a data set; else the array or its folder; null: "
            "look in the data folders"
        ),
    ]
    | None
)
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
    own: ClassVar[tuple[str, ...]] = ("path", "clusters", "size", "duplicates")

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
        duplicates: Duplicates = "refuse",
        visits: Visits = "uniform",
        newcomers: Newcomers = 0.0,
    ) -> None:
        super().__init__(users, servers, dim, items, placement, visits, newcomers)
        ratings = load_ratings(path, duplicates)
        self.path, self.clusters, self.size = name_of(path, ratings), clusters, size
        self.duplicates = duplicates
        self._part = densest(ratings, size)

    @cached_property
    def _vectors(self) -> Floats:
        vectors = factors(self._part.matrix, self.problem.dim)[0]
        return clustered(vectors, self.clusters)[0] if self.clusters else vectors

    def _pool(self, rng: np.random.Generator) -> Floats:
        return self._vectors


ROUNDING = 1e-9
FORM = "a row per user, whose last entry is at least the norm r of the others and at most √2 − r"


def find_array(name: str, path: str | None = None) -> Path:
    """A .npy file: `path` itself, or `name` in that folder or the usual ones (or their `authors`)."""
    if path is not None and Path(path).is_file():
        return Path(path)
    folders = [Path(path)] if path is not None else data_folders()
    for folder in folders:
        for file in (folder / name, folder / "authors" / name):
            if file.is_file():
                return file
    places = ", ".join(map(str, folders))
    raise DataMissing(f"there is no {name} in {places}; set FCLUB_DATA_DIR or give its folder as path")


def load_array(file: Path) -> Floats:
    """User vectors, never from a pickle; θᵀx must be in [0, 1] for all items that can be drawn."""
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidFile(f"{file} is not a .npy file: {error}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.ndim != 2:
        raise InvalidFile(f"{file} must hold a matrix of numbers, one row per user")
    array = np.ascontiguousarray(array, dtype=np.float64)
    constant, rest = array[:, -1], np.linalg.norm(array[:, :-1], axis=1)
    lowest, highest = HALF * (constant - rest), HALF * (constant + rest)
    if not ((lowest >= -ROUNDING) & (highest <= 1.0 + ROUNDING)).all():
        raise InvalidFile(f"{file}: rewards θᵀx of its users would leave [0, 1]; it needs {FORM}")
    return array


class Arrays(VectorEnvironment):
    """The users in any .npy file of user vectors: the first `users` rows, or a random choice."""

    name: ClassVar[str] = "arrays"
    own: ClassVar[tuple[str, ...]] = ("path", "choice")

    @checked
    def __init__(
        self,
        path: Annotated[
            str, meaning(f"a .npy file, or its name in the data folder; {FORM}")
        ] = "10_theta.npy",
        users: Users = 40,
        servers: Servers = 5,
        items: Items = 10,
        placement: Placement = "blocks",
        choice: Annotated[
            Literal["first", "random"], meaning("which rows of the file are the users")
        ] = "first",
        visits: Visits = "uniform",
        newcomers: Newcomers = 0.0,
    ) -> None:
        self.path, self.choice = path, choice
        self._vectors = load_array(find_array(path, path if Path(path).exists() else None))
        super().__init__(users, servers, self._vectors.shape[1], items, placement, visits, newcomers)

    def get_params(self) -> dict[str, Parameter]:
        """`dim` is the file's, so it is not a parameter."""
        return {key: value for key, value in super().get_params().items() if key != "dim"}

    def _pool(self, rng: np.random.Generator) -> Floats:
        return self._vectors

    def _choose(self, count: int, rng: np.random.Generator) -> Indices:
        if self.choice == "random":
            return super()._choose(count, rng)
        return np.arange(self.problem.users)


class Published(VectorEnvironment):
    """A data set of the paper: as printed from its ratings, or from a published array."""

    own: ClassVar[tuple[str, ...]] = ("variant", "size", "path")
    files: ClassVar[dict[str, str]]
    data: ClassVar[str]

    @checked
    def __init__(
        self,
        variant: Variant = "printed",
        users: Users = 40,
        servers: Servers = 5,
        dim: Dim = 10,
        items: Items = 10,
        placement: Placement = "blocks",
        size: Size = 1000,
        path: PublishedPath = None,
        visits: Visits = "uniform",
        newcomers: Newcomers = 0.0,
    ) -> None:
        variants = ("printed", *self.files)
        require(variant in variants, f"variant must be one of {', '.join(variants)}", variant)
        super().__init__(users, servers, dim, items, placement, visits, newcomers)
        self.variant, self.size, self.path = variant, size, path
        if variant == "printed":
            self._ratings = load_ratings(path or self.data)
        else:
            self._vectors = load_array(find_array(self.files[variant], path))
            require(dim == self._vectors.shape[1], f"dim is {self._vectors.shape[1]} here", dim)

    def _pool(self, rng: np.random.Generator) -> Floats:
        if self.variant != "printed":
            return self._vectors
        matrix = random_part(self._ratings, self.size, rng).matrix
        return factors(matrix, self.problem.dim)[0]

    def _choose(self, count: int, rng: np.random.Generator) -> Indices:
        if self.variant == "top40":
            return np.arange(self.problem.users)
        return super()._choose(count, rng)


class MovieLens(Published):
    """The paper's second experiment."""

    name: ClassVar[str] = "movielens"
    data: ClassVar[str] = "movielens-1m"
    files: ClassVar[dict[str, str]] = {
        "clustered": "ml_1000user_d10.npy",
        "top40": "ml_1000user_d10.npy",
        "users": "ml_1000user_d10_tmp.npy",
    }


class Yelp(Published):
    """Yelp users, who really cluster in this representation; `clustered4` has 4 centroids, not 10."""

    name: ClassVar[str] = "yelp"
    data: ClassVar[str] = "yelp"
    files: ClassVar[dict[str, str]] = {
        "clustered": "yelp_1000user_d10_m10.npy",
        "clustered4": "yelp_1000user_d10_m4.npy",
        "top40": "yelp_1000user_d10_m10.npy",
        "users": "yelp_1000user_d10.npy",
    }
