"""From ratings to user vectors, as the published experiments did it: only "rated or not" enters.

The densest part of the matrix (N users × N items) is factorised; a user is its row of the first
d−1 left singular vectors, scaled to norm 1, beside a constant 1, all divided by √2. Then θᵀx is in
[0, 1] for items of the same form.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fclub.config import require
from fclub.core.clustering import number_by_first
from fclub.core.types import Floats, Indices, Matrix
from fclub.environments.data.ratings_file import Ratings
from fclub.environments.world import HALF, with_constant

KMEANS_ROUNDS = 300


@dataclass(frozen=True)
class Selection:
    """A dense 0/1 matrix and which users (rows) and items (columns) of the ratings it holds."""

    matrix: Matrix
    users: Indices
    items: Indices


def _most(counts: Any, size: int) -> Indices:
    """The `size` largest counts, largest first, ties by ascending position."""
    return np.argsort(-np.asarray(counts), kind="stable")[:size].astype(np.int64)


def densest(ratings: Ratings, size: int) -> Selection:
    """3N most active users → N most rated items → N most active users on those.

    Fewer where there are fewer. Rows and columns are in order of activity.
    """
    require(size >= 2, "size must be at least 2", size)
    rated = ratings.matrix()
    active = _most(rated.sum(axis=1), 3 * size)
    items = _most(rated[active].sum(axis=0), size)
    part = rated[active][:, items]
    chosen = _most(part.sum(axis=1), size)
    return Selection(part[chosen].toarray(), active[chosen], items)


def most_rated(ratings: Ratings, size: int) -> Any:
    """All users × the N most rated items (fewer if there are fewer), as a sparse matrix of ratings."""
    part = ratings.matrix(binary=False)[:, most_rated_items(ratings, size)]
    part.sort_indices()
    return part


def most_rated_items(ratings: Ratings, size: int) -> Indices:
    """The N most rated items, most rated first."""
    require(size >= 2, "size must be at least 2", size)
    return _most(ratings.matrix().sum(axis=0), size)


def random_part(ratings: Ratings, size: int, rng: np.random.Generator) -> Selection:
    """A random N items and a random N of the users who rated any of them (fewer if there are fewer).

    A user without a rating among the drawn items has no direction, so it cannot be drawn.
    """
    require(size >= 2, "size must be at least 2", size)
    rated = ratings.matrix()
    items = np.sort(rng.permutation(rated.shape[1])[:size])
    part = rated[:, items]
    known = np.flatnonzero(part.sum(axis=1))
    users = np.sort(rng.permutation(known)[:size])
    return Selection(part[users].toarray(), users, items)


def factors(matrix: Matrix, dim: int) -> tuple[Floats, Floats]:
    """Row and column vectors of a matrix in d dimensions, in the form described above.

    A singular vector's sign is arbitrary: the entry of a left vector that is largest in absolute
    value is made positive. A row or column that is all zero keeps only its constant.
    """
    rank = min(matrix.shape)
    require(2 <= dim <= rank + 1, f"dim must be between 2 and {rank + 1} for this data", dim)
    left = _left_vectors(matrix, dim - 1)
    right = _right_vectors(matrix, left)
    return with_constant(left, matrix.any(axis=1)), with_constant(right, matrix.any(axis=0))


def sparse_factors(matrix: Any, dim: int) -> tuple[Floats, Floats]:
    """`factors` of a sparse matrix without stored zeros, by Lanczos' method from a fixed start.

    Time and memory grow with the number of entries.
    """
    from scipy.sparse.linalg import svds

    rank = min(matrix.shape)
    require(2 <= dim <= rank, f"dim must be between 2 and {rank} for this data", dim)
    start = np.random.default_rng(0).standard_normal(rank)
    with threadpool_limits(1, "blas"):
        left, values, _ = svds(matrix, k=dim - 1, v0=start, solver="arpack")
        left = _signed(left[:, np.argsort(-values, kind="stable")])
        right = _right_vectors(matrix, left)
    known = [matrix.count_nonzero(axis=axis) > 0 for axis in (1, 0)]
    return with_constant(left, known[0]), with_constant(right, known[1])


def sparse_vectors(matrix: Any, likes: Any, rated: Any, dim: int) -> tuple[Floats, Floats]:
    """`sparse_factors` with one feature less, and in its place what everybody thinks of an item.

    `likes` of the `rated` training ratings of every item were likes. An item is (f, q, 1)/√2: f has its
    direction and the norm √½, q is √½ times its quality. Users have 0 there.
    """
    require(dim >= 3, "with quality, dim must be at least 3", dim)
    users, items = sparse_factors(matrix, dim - 1)
    quality = item_quality(likes, rated)
    return np.insert(users, -1, 0.0, axis=1), with_quality(items, quality)


def with_quality(items: Floats, quality: Floats) -> Floats:
    """Items (f, 1)/√2 as (f, q, 1)/√2, with half of the free part for the quality."""
    share = np.sqrt(0.5)
    free = share * np.column_stack([items[:, :-1], HALF * quality])
    return np.column_stack([free, items[:, -1]])


def item_quality(likes: Any, rated: Any) -> Floats:
    """What everybody thinks of every item: from −1 to 1, and 0 is the mean or nothing known.

    Like rates are shrunk towards the mean p as in a beta-binomial model, (likes + kp)/(rated + k). Its
    k = (1−ρ)/ρ is found by moments: ρ is the share of p(1−p) that lies between items, and
    E Σ n(r − p)² ≈ p(1−p)·((1−ρ)·M + ρ·N) for M items with N ratings. The largest deviation becomes 1.
    """
    likes, rated = np.asarray(likes, dtype=np.float64), np.asarray(rated, dtype=np.float64)
    known = rated > 0.0
    number, ratings = int(known.sum()), float(rated.sum())
    p = float(likes.sum()) / max(ratings, 1.0)
    variance = p * (1.0 - p)
    if variance == 0.0 or ratings <= number:
        return np.zeros(len(rated))
    scatter = float(np.sum((likes[known] - p * rated[known]) ** 2 / rated[known]))
    rho = (scatter / variance - number) / (ratings - number)
    if rho <= 0.0:
        return np.zeros(len(rated))
    k = (1.0 - min(rho, 1.0)) / rho
    deviation: Floats = np.where(known, likes - p * rated, 0.0) / np.where(known, rated + k, 1.0)
    return deviation / float(np.abs(deviation).max())


def _right_vectors(matrix: Any, left: Floats) -> Floats:
    """The right singular vectors that belong to these left ones."""
    right: Floats = matrix.T @ left
    scale = np.linalg.norm(right, axis=0)
    return right / np.where(scale > 0.0, scale, 1.0)


def _signed(left: Floats) -> Floats:
    """Singular vectors with the sign that `factors` promises."""
    top = np.argmax(np.abs(left), axis=0)
    signed: Floats = left * np.sign(left[top, np.arange(left.shape[1])])
    return signed


def _left_vectors(matrix: Matrix, count: int) -> Floats:
    """The first left singular vectors, as eigenvectors of MMᵀ: a fifth of the time of a whole SVD.

    On one thread: the result then does not depend on the number of cores, and parallel runs do not
    fight for them.
    """
    from scipy.linalg import eigh

    n = matrix.shape[0]
    with threadpool_limits(1, "blas"):
        _, ascending = eigh(matrix @ matrix.T, subset_by_index=[n - count, n - 1])
    return _signed(ascending[:, ::-1])


def clustered(vectors: Floats, clusters: int, seed: int = 0) -> tuple[Floats, Indices]:
    """Every vector replaced by its k-means centroid, and the number of its cluster.

    Seeded k-means++ start, then Lloyd's iteration until nothing moves; an emptied cluster takes the
    vector that is farthest from its centroid.
    """
    most = len(np.unique(vectors, axis=0))
    require(1 <= clusters <= most, f"clusters must be between 1 and {most} here", clusters)
    centres = _spread_out(vectors, clusters, np.random.default_rng(seed))
    labels = np.full(len(vectors), -1)
    for _ in range(KMEANS_ROUNDS):
        distances = _distances(vectors, centres)
        nearest = np.argmin(distances, axis=1)
        farness = distances.min(axis=1)
        for empty in np.setdiff1d(np.arange(clusters), nearest):
            farthest = np.argmax(farness)
            nearest[farthest], farness[farthest] = empty, 0.0
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        centres = np.array([vectors[labels == k].mean(axis=0) for k in range(clusters)])
    return centres[labels], labels.astype(np.int64)


def _distances(vectors: Floats, centres: Floats) -> Floats:
    """Squared distances, (n, k)."""
    squares: Floats = ((vectors[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
    return squares


def _spread_out(vectors: Floats, clusters: int, rng: np.random.Generator) -> Floats:
    chosen = [int(rng.integers(len(vectors)))]
    while len(chosen) < clusters:
        weight = _distances(vectors, vectors[chosen]).min(axis=1)
        chosen.append(int(rng.choice(len(vectors), p=weight / weight.sum())))
    return vectors[chosen]


def distinct(vectors: Floats) -> Indices:
    """The true clusters: users with exactly equal vectors, numbered by first appearance."""
    return number_by_first(np.ravel(np.unique(vectors, axis=0, return_inverse=True)[1]))


def blob_sha1(array: Any) -> str:
    """The git blob id of the array's .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    content = buffer.getvalue()
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
