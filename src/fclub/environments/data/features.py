"""Items' features from ratings, as the environment `liked` has them, for a live server's catalogue."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fclub.config import require
from fclub.core.types import Flags, Floats, Indices
from fclub.environments.data.cache import Source, load_ratings
from fclub.environments.data.pipeline import most_rated_items, sparse_factors, sparse_vectors
from fclub.environments.data.private_features import (
    Released,
    new_ledger,
    plan_features,
    release_features,
)
from fclub.errors import InvalidFile
from fclub.paths import write_atomically
from fclub.privacy.ledger import Ledger
from fclub.privacy.noise import NoiseSource, SeededNoise

RIDGE = 1.0
CONSTANT = "constant"
"""The name of the last feature where all items share it."""

MOST_USERS = 2000
"""Users in the held-out check; more would only make it slower."""


@dataclass(frozen=True)
class Check:
    """How often, of two held-out ratings of a user, the liked item is put before the other one.

    Features were made without the held-out ratings; each of the `users` has its own ridge regression
    on them. `popularity` orders items by the share of people who liked them; chance is ½.
    """

    users: int
    features: float
    popularity: float


class Opinion(NamedTuple):
    """Whether a user liked the item in this place."""

    user: str
    item: int
    liked: bool


@dataclass(frozen=True)
class ItemFeatures:
    """Ids and vectors, the last feature being `constant` everywhere, and how well they predict.

    `opinions` are the ratings of these items that they were made from. `ledger` tells what they cost,
    where they were made under a budget; `check` and `opinions` are data all the same.
    """

    ids: list[str]
    rows: Floats
    check: Check
    opinions: list[Opinion]
    ledger: Ledger | None = None

    @property
    def constant(self) -> float:
        return float(self.rows[0, -1])

    def write(self, path: Path, titles: dict[str, str] | None = None) -> None:
        """A CSV that `fclub local --catalogue` reads; `titles` may take the place of ids."""
        head = ["id", *(f"x{k}" for k in range(1, self.rows.shape[1])), CONSTANT]
        rows = zip(self._called(titles), self.rows.tolist(), strict=True)
        _write_csv(path, head, ([key, *map(repr, row)] for key, row in rows))

    def write_log(self, path: Path, titles: dict[str, str] | None = None) -> None:
        """A CSV that `fclub import` reads: a like is worth 1, another rating 0."""
        ids = self._called(titles)
        rows = ([user, ids[item], int(liked)] for user, item, liked in self.opinions)
        _write_csv(path, ["user", "item", "reward"], rows)

    def _called(self, titles: dict[str, str] | None) -> list[str]:
        return self.ids if titles is None else _named(self.ids, titles)


def _write_csv(path: Path, head: list[str], rows: Iterable[list[Any]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([head, *rows])
    try:
        with write_atomically(path) as file:
            file.write(text.getvalue().encode())
    except OSError as error:
        raise InvalidFile(f"{path}: {error.strerror}") from None


def item_features(
    source: Source,
    dim: int,
    size: int | None = None,
    threshold: float | None = None,
    holdout: float = 0.2,
    seed: int = 0,
    quality: bool = True,
) -> ItemFeatures:
    """Right singular vectors of who rated what, for the `size` most rated items, or for all.

    The last but one feature is the item's `quality`, its shrunk like rate; the last one is constant.
    `source` is a file, a data set's name or a data frame. A rating of at least `threshold` (the mean
    unless given) is a like. For the check, a share `holdout` of all ratings is kept aside.
    """
    require(0.0 < holdout < 1.0, "holdout must be between 0 and 1", holdout)
    ratings = load_ratings(source)
    items = most_rated_items(ratings, size or len(ratings.item_ids))
    rated = ratings.matrix(binary=False)[:, items]
    rated.sort_indices()
    rng = np.random.default_rng(seed)
    line = float(ratings.values.mean()) if threshold is None else threshold
    likes = rated.data >= line
    rows = _vectors(rated, likes, np.ones(rated.nnz, dtype=np.bool_), dim, quality)
    check = _check(rated, likes, rng.random(rated.nnz) < holdout, dim, quality, rng)
    people = np.repeat(ratings.user_ids, np.diff(rated.indptr)).tolist()
    told = zip(map(str, people), rated.indices.tolist(), likes.tolist(), strict=True)
    ids = [str(key) for key in ratings.item_ids[items]]
    return ItemFeatures(ids, rows, check, list(itertools.starmap(Opinion, told)))


def private_features(
    source: Source,
    dim: int,
    size: int | None,
    threshold: float,
    epsilon: float,
    delta: float,
    noise: NoiseSource,
    holdout: float = 0.2,
    seed: int = 0,
    quality: bool = True,
) -> ItemFeatures:
    """The same under a budget of (ε, δ) for each user, whose ids of items are taken for public.

    `threshold` is needed, since the mean of all ratings is data. For the check everything is made once
    more without the held-out ratings, with seeded noise: the check stays at home.
    """
    require(0.0 < holdout < 1.0, "holdout must be between 0 and 1", holdout)
    ratings = load_ratings(source)
    rated = ratings.matrix(binary=False)
    rated.sort_indices()
    rng, likes = np.random.default_rng(seed), rated.data >= threshold
    size = min(size or rated.shape[1], rated.shape[1])
    plan = plan_features(epsilon, delta, rated.shape[1], size)

    def released(known: Flags, source: NoiseSource) -> tuple[Released, Ledger]:
        ledger, part = new_ledger(epsilon, delta, source), _part(rated, known)
        made = release_features(part, likes[known], dim, size, quality, plan, ledger, source)
        return made, ledger

    made, ledger = released(np.ones(rated.nnz, dtype=np.bool_), noise)
    held_out = rng.random(rated.nnz) < holdout
    again, _ = released(~held_out, SeededNoise(rng))
    place = np.full(rated.shape[1], -1)
    place[again.items] = np.arange(size)
    inside = place[rated.indices] >= 0
    test = _part(rated, inside)
    test.indices = place[test.indices]
    test = type(test)((test.data, test.indices, test.indptr), shape=(rated.shape[0], size))
    check = _checked(test, likes[inside], held_out[inside], again.rows, rng)
    place[:] = -1
    place[made.items] = np.arange(size)
    people = np.repeat(ratings.user_ids, np.diff(rated.indptr)).tolist()
    told = zip(map(str, people), place[rated.indices].tolist(), likes.tolist(), strict=True)
    opinions = [Opinion(user, item, liked) for user, item, liked in told if item >= 0]
    ids = [str(key) for key in ratings.item_ids[made.items]]
    return ItemFeatures(ids, made.rows, check, opinions, ledger)


def _part(rated: Any, known: Flags) -> Any:
    """The same users and items with some of the ratings."""
    counts = np.add.reduceat(np.append(known, False), rated.indptr[:-1]) if rated.nnz else known[:0]
    counts = np.where(np.diff(rated.indptr) > 0, counts, 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return type(rated)((rated.data[known], rated.indices[known], starts), shape=rated.shape)


def _vectors(rated: Any, likes: Flags, known: Flags, dim: int, quality: bool) -> Floats:
    matrix = rated.copy()
    matrix.data = known.astype(np.float64)
    matrix.eliminate_zeros()
    if not quality:
        return sparse_factors(matrix, dim)[1]
    return sparse_vectors(matrix, *_opinions(rated, likes, known), dim)[1]


def _opinions(rated: Any, likes: Flags, known: Flags) -> tuple[Indices, Indices]:
    """Likes and ratings of every item, among those that are known."""
    shown = np.bincount(rated.indices[known], minlength=rated.shape[1])
    return np.bincount(rated.indices[known & likes], minlength=rated.shape[1]), shown


def _check(
    rated: Any, likes: Flags, held_out: Flags, dim: int, quality: bool, rng: np.random.Generator
) -> Check:
    rows = _vectors(rated, likes, ~held_out, dim, quality)
    return _checked(rated, likes, held_out, rows, rng)


def _checked(
    rated: Any, likes: Flags, held_out: Flags, rows: Floats, rng: np.random.Generator
) -> Check:
    column, dim = rated.indices, rows.shape[1]
    liked, shown = _opinions(rated, likes, ~held_out)
    popularity = (liked + 1.0) / (shown + 2.0)
    by_features, by_popularity = [], []
    for user in rng.permutation(rated.shape[0])[:MOST_USERS].tolist():
        own = slice(rated.indptr[user], rated.indptr[user + 1])
        test, x, y = held_out[own], rows[column[own]], likes[own]
        if len(set(y[test].tolist())) < 2:
            continue
        gram = x[~test].T @ x[~test] + RIDGE * np.eye(dim)
        theta = np.linalg.solve(gram, x[~test].T @ (y[~test] - 0.5))
        by_features.append(_ordered(x[test] @ theta, y[test]))
        by_popularity.append(_ordered(popularity[column[own][test]], y[test]))
    require(bool(by_features), "no user has both liked and other held-out ratings", len(by_features))
    return Check(len(by_features), float(np.mean(by_features)), float(np.mean(by_popularity)))


def _ordered(scores: Floats, likes: Flags) -> float:
    """The share of pairs of a liked and another item that the scores put right; ties count half."""
    above = scores[likes][:, None] - scores[~likes][None, :]
    return float(np.mean((above > 0.0) + 0.5 * (above == 0.0)))


def read_titles(path: Path) -> dict[str, str]:
    """Titles by item: the first two columns of a CSV with a header, as MovieLens' movies.csv."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            next(lines, None)
            return {row[0]: row[1] for row in lines if len(row) > 1}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: {error}") from None


def _named(ids: list[str], titles: dict[str, str]) -> list[str]:
    """Titles in place of ids; where two items share one, the id is added."""
    named = [titles.get(key, key) for key in ids]
    times = Counter(named)
    pairs = zip(ids, named, strict=True)
    return [f"{name} [{key}]" if times[name] > 1 else name for key, name in pairs]
