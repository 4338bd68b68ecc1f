"""User vectors from .npy files: the published arrays by name, or any file.

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

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from fclub.config import Dim, Servers, Users, require
from fclub.core.types import Floats, Indices
from fclub.environments.base import Items, Newcomers, Placement, Visits
from fclub.environments.data.cache import load_ratings
from fclub.environments.data.datasets import data_folders
from fclub.environments.data.pipeline import factors, random_part
from fclub.environments.vectors import Size, VectorEnvironment
from fclub.environments.world import HALF
from fclub.errors import DataMissing, InvalidFile
from fclub.parameters import checked, meaning
from fclub.values import Parameter

ROUNDING = 1e-9


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
        raise InvalidFile(f"{file}: rewards θᵀx of its users would leave [0, 1]")
    return array


class Arrays(VectorEnvironment):
    """The users in any .npy file of user vectors: the first `users` rows, or a random choice."""

    name: ClassVar[str] = "arrays"
    own: ClassVar[tuple[str, ...]] = ("path", "choice")

    @checked
    def __init__(
        self,
        path: Annotated[str, meaning("a .npy file, or its name in the data folder")] = "10_theta.npy",
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
    """A data set of the paper: as printed from its ratings, or from a published array.

    `printed`: `size` random items and users, factorised, then `users` of those at random, all for
    each seed anew (`path`: a ratings file, or the name of a data set). `clustered`, `users`: random
    rows of the clustered and the unclustered array; `top40`: the first rows of the clustered one, as
    the published code has it (`path`: the array or its folder).
    """

    own: ClassVar[tuple[str, ...]] = ("variant", "size", "path")
    files: ClassVar[dict[str, str]]
    data: ClassVar[str]

    @checked
    def __init__(
        self,
        variant: Annotated[
            str, meaning("printed, clustered, clustered4 (yelp), users or top40: see above")
        ] = "printed",
        users: Users = 40,
        servers: Servers = 5,
        dim: Dim = 10,
        items: Items = 10,
        placement: Placement = "blocks",
        size: Size = 1000,
        path: Annotated[str, meaning("the file, or its folder; null: look in the data folders")]
        | None = None,
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
