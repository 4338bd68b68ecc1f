"""The densest part, its factorisation and k-means, against their definitions and golden digests."""

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fclub.environments.data.pipeline import (
    blob_sha1,
    clustered,
    densest,
    distinct,
    factors,
    item_quality,
    most_rated,
    random_part,
    sparse_factors,
)
from fclub.environments.data.ratings_file import Ratings, read_ratings
from fclub.errors import InvalidSetting

GOLDEN = {
    "ml-latest-small/ratings.csv": (
        (610, 1000),
        "cc24973f91fdf4412aa4f6fcbad14d4e9960c456",
        "48b17837a2ceb6bd",
    ),
    "movietweetings/100K/ratings.dat": (
        (1000, 1000),
        "e17faa379137be7288cf7e36563fc33a4643e06b",
        "d30fed60478630d0",
    ),
}
"""Shape and git blob id of the 0/1 matrix; digest of the user vectors rounded to six decimals."""


def random_ratings(seed: int, users: int = 20, items: int = 15) -> Ratings:
    rng = np.random.default_rng(seed)
    rated = np.argwhere(rng.random((users, items)) < 0.4)
    ids = (np.arange(users), np.arange(items))
    return Ratings(rated[:, 0], rated[:, 1], np.ones(len(rated)), *ids)


def by_activity(counts: list[int], size: int) -> list[int]:
    return sorted(range(len(counts)), key=lambda k: (-counts[k], k))[:size]


@given(seed=st.integers(0, 1000), size=st.integers(2, 12))
def test_densest_by_its_definition(seed: int, size: int) -> None:
    ratings = random_ratings(seed)
    full = ratings.matrix().toarray()
    active = by_activity(list(full.sum(axis=1)), 3 * size)
    items = by_activity(list(full[active].sum(axis=0)), size)
    counts = list(full[active][:, items].sum(axis=1))
    users = [active[k] for k in by_activity(counts, size)]
    part = densest(ratings, size)
    assert list(part.users) == users
    assert list(part.items) == items
    np.testing.assert_array_equal(part.matrix, full[users][:, items])


def test_random_part_has_no_silent_user() -> None:
    ratings = random_ratings(3)
    part = random_part(ratings, 6, np.random.default_rng(0))
    assert part.matrix.shape == (6, 6)
    assert part.matrix.any(axis=1).all()
    full = ratings.matrix().toarray()
    np.testing.assert_array_equal(part.matrix, full[part.users][:, part.items])


@given(seed=st.integers(0, 1000), dim=st.integers(2, 8))
def test_factors_are_singular_vectors(seed: int, dim: int) -> None:
    matrix = np.random.default_rng(seed).random((12, 9))
    users, items = factors(matrix, dim)
    left, _, right = np.linalg.svd(matrix)
    for vectors, true in ((users, left[:, : dim - 1]), (items, right[: dim - 1].T)):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0)
        np.testing.assert_allclose(vectors[:, -1], np.sqrt(0.5))
        directions = true / np.linalg.norm(true, axis=1, keepdims=True)
        np.testing.assert_allclose(np.abs(vectors[:, :-1]) * np.sqrt(2), np.abs(directions), atol=1e-6)
    assert (users[:, 0] > 0).all(), "the first singular vector of a positive matrix has one sign"
    assert ((users @ items.T >= 0) & (users @ items.T <= 1 + 1e-9)).all()


@given(seed=st.integers(0, 1000), dim=st.integers(2, 8))
def test_sparse_factors_are_the_same(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.random((12, 9)) * (rng.random((12, 9)) < 0.7)
    matrix[3], matrix[:, 4] = 0.0, 0.0
    for dense, sparse in zip(factors(matrix, dim), sparse_factors(csr_array(matrix), dim), strict=True):
        np.testing.assert_allclose(sparse, dense, atol=1e-6)


def test_most_rated_items_of_all_users() -> None:
    ratings = random_ratings(5)
    full = ratings.matrix().toarray()
    items = by_activity(list(full.sum(axis=0)), 6)
    np.testing.assert_array_equal(most_rated(ratings, 6).toarray(), full[:, items])


def test_silent_rows_keep_only_the_constant() -> None:
    matrix = np.array([[1.0, 1, 0], [0, 0, 0], [1, 0, 1]])
    users, _ = factors(matrix, 3)
    np.testing.assert_array_equal(users[1], [0, 0, np.sqrt(0.5)])


def test_too_many_dimensions() -> None:
    with pytest.raises(InvalidSetting, match="dim"):
        factors(np.ones((4, 4)), 6)


@given(seed=st.integers(0, 1000), clusters=st.integers(1, 8))
def test_kmeans_ends_where_nothing_moves(seed: int, clusters: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((40, 3))
    centroids, labels = clustered(vectors, clusters)
    assert len(np.unique(labels)) == clusters
    for k in range(clusters):
        mean = vectors[labels == k].mean(axis=0)
        assert np.allclose(centroids[labels == k], mean)
    centres = np.array([centroids[labels == k][0] for k in range(clusters)])
    nearest = ((vectors[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(nearest, labels)
    np.testing.assert_array_equal(clustered(vectors, clusters)[1], labels)


def test_distinct_numbers_by_first_appearance() -> None:
    rows = np.array([[3.0, 1], [1, 1], [3, 1], [2, 2]])
    np.testing.assert_array_equal(distinct(rows), [0, 1, 0, 2])


def test_blob_id_is_gits(tmp_path: Path) -> None:
    array = np.eye(3)
    np.save(tmp_path / "a.npy", array)
    git = ["git", "hash-object", str(tmp_path / "a.npy")]
    assert subprocess.check_output(git, text=True).strip() == blob_sha1(array)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_digest(name: str, real_data: Callable[[str], Path]) -> None:
    shape, matrix_digest, vector_digest = GOLDEN[name]
    part = densest(read_ratings(real_data(name)), 1000)
    assert part.matrix.shape == shape
    assert blob_sha1(part.matrix) == matrix_digest
    rounded = np.round(factors(part.matrix, 10)[0], 6) + 0.0
    assert hashlib.sha256(rounded.tobytes()).hexdigest()[:16] == vector_digest


def test_quality_finds_how_much_items_differ() -> None:
    """Likes of a beta-binomial model: the shrunk rates are those of its own k = a + b."""
    rng = np.random.default_rng(0)
    rated = rng.integers(1, 60, 4_000)
    likes = rng.binomial(rated, rng.beta(6.0, 4.0, 4_000))
    shrunk = (likes + 6.0) / (rated + 10.0) - 0.6
    found = item_quality(likes, rated)
    assert np.abs(found).max() == 1.0
    scale = found @ shrunk / (found @ found)
    np.testing.assert_allclose(scale * found, shrunk, atol=0.02)


@pytest.mark.parametrize(
    ("likes", "rated"),
    [([0, 0, 0], [5, 6, 7]), ([5, 6], [5, 6]), ([1, 0, 1], [1, 1, 1]), ([3, 3], [6, 6]), ([0], [0])],
)
def test_no_quality_where_nothing_tells_items_apart(likes: list[int], rated: list[int]) -> None:
    np.testing.assert_array_equal(item_quality(likes, rated), 0.0)


def test_an_item_that_nobody_rated_is_of_mean_quality() -> None:
    found = item_quality([9, 0, 1], [10, 0, 10])
    np.testing.assert_allclose(found, [1.0, 0.0, -1.0])
