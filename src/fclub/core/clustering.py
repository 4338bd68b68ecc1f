"""Finding clusters: the user graph with permanent deletions (Eq. 3) and the global merge (Eq. 4).

And how well found clusters agree with the true ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy, deepcopy
from math import ceil, log
from typing import Any

import numpy as np

from fclub.core.compiling import beside, compiled
from fclub.core.kernels import distance, width
from fclub.core.types import Counts, Edges, Flags, Floats, Indices, Matrix, Vector

DENSE_USERS = 2_000
"""The most users with whom a server's graph starts complete; with more it starts sparse and random."""


@compiled
def allowance(first: float, second: float, factor: float) -> float:
    """factor·(F(T₁) + F(T₂)): how far two estimates of one θ may lie apart (Eq. 3 and 4)."""
    return factor * (width(first) + width(second))


@beside
def far_apart(
    theta: Floats, count: Counts, first: Edges, second: Edges, factor: float, far: Flags
) -> None:
    """Eq. 3 for a list of pairs: ‖θ̂₁ − θ̂₂‖ beyond the allowance."""
    for e in range(first.shape[0]):
        i, j = first[e], second[e]
        allowed = allowance(float(count[i]), float(count[j]), factor)
        far[e] = distance(theta[i], theta[j]) > allowed


def number_by_first(labels: Indices | Edges) -> Indices:
    """Rename labels to 0, 1, … in the order in which they first appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]


@beside
def components(nodes: int, first: Edges | Indices, second: Edges | Indices) -> Indices:
    """Connected components of an undirected graph, numbered by their first node.

    Every node points to an earlier one of its component, the first to itself; paths are halved on the
    way. The memory needed beside the edges is that of the labels.
    """
    earlier = np.arange(nodes).astype(np.int32)
    for e in range(first.shape[0]):
        a, b = first[e], second[e]
        if earlier[a] == earlier[b]:
            continue
        while earlier[a] != a:
            earlier[a] = earlier[earlier[a]]
            a = earlier[a]
        while earlier[b] != b:
            earlier[b] = earlier[earlier[b]]
            b = earlier[b]
        earlier[max(a, b)] = min(a, b)
    labels, found = np.empty(nodes, dtype=np.int64), 0
    for i in range(nodes):
        if earlier[i] == i:
            labels[i] = found
            found += 1
        else:
            labels[i] = labels[earlier[i]]
    return labels


def complete_edges(users: int) -> tuple[Edges, Edges]:
    """All pairs i < j."""
    first, second = np.triu_indices(users, k=1)
    return first.astype(np.int32), second.astype(np.int32)


def sparse_degree(users: int, clusters: int) -> int:
    """Neighbours per user so that every one of `clusters` equal clusters is connected w.h.p.

    A random graph on s nodes is connected once its mean degree exceeds log s; a user's neighbours
    fall into its own cluster with probability 1/clusters, and the factor 2 is the margin.
    """
    return min(users - 1, ceil(2 * clusters * log(users)))


def sparse_edges(users: int, clusters: int, rng: np.random.Generator) -> tuple[Edges, Edges]:
    """O(n log n) random pairs, the initial graph of Gentile et al. (2014)."""
    pairs = users * sparse_degree(users, clusters) // 2
    first = rng.integers(users, size=pairs, dtype=np.int32)
    second = rng.integers(users - 1, size=pairs, dtype=np.int32)
    second += second >= first
    return first, second


class UserGraph:
    """The graph G^ℓ of one local server. Edges are only ever deleted, except those of new users."""

    def __init__(
        self,
        users: int,
        rng: np.random.Generator,
        sparse: bool | None = None,
        sparse_clusters: int = 4,
    ) -> None:
        self._rng = rng
        self._users = users
        self._sparse = users > DENSE_USERS if sparse is None else sparse
        self._clusters = sparse_clusters
        if self._sparse and users > 1:
            edges = sparse_edges(users, sparse_clusters, rng)
        else:
            edges = complete_edges(users)
        self._portions = [edges]
        self._labels: Indices | None = None

    def copy(self) -> UserGraph:
        """The same graph, which changes for itself; edges are never written to, so both share them."""
        other = copy(self)
        other._portions, other._rng = self._portions.copy(), deepcopy(self._rng)
        return other

    @property
    def users(self) -> int:
        return self._users

    @property
    def first(self) -> Edges:
        """One end of every edge."""
        return self._edges()[0]

    @property
    def second(self) -> Edges:
        """The other end."""
        return self._edges()[1]

    def _edges(self) -> tuple[Edges, Edges]:
        """All portions as one. They are joined here and not when added, so that adding is cheap."""
        if len(self._portions) > 1:
            first, second = zip(*self._portions, strict=True)
            self._portions = [(np.concatenate(first), np.concatenate(second))]
        return self._portions[0]

    def __len__(self) -> int:
        return sum(len(first) for first, _ in self._portions)

    def add_user(self) -> int:
        """A new user, without edges so far."""
        self._users, self._labels = self._users + 1, None
        return self._users - 1

    def link(self, user: int, others: Sequence[int]) -> None:
        """Join a user that has no edges to some others; in a large graph to O(log n) random ones."""
        if self._sparse or len(others) >= DENSE_USERS:
            degree = min(len(others), sparse_degree(self._users, self._clusters))
            drawn = self._rng.choice(len(others), size=degree, replace=False)
            others = [others[i] for i in drawn]
        ends = np.full(len(others), user, dtype=np.int32)
        self._portions.append((np.array(others, dtype=np.int32), ends))
        self._labels = None

    def state(self) -> dict[str, Any]:
        """Edges, number of users and the state of the generator that draws new users' edges."""
        generator = json.dumps(self._rng.bit_generator.state).encode()
        return {
            "first": self.first,
            "second": self.second,
            "users": np.array(self._users),
            "generator": np.frombuffer(generator, dtype=np.uint8),
        }

    def restore(self, arrays: dict[str, Any]) -> None:
        self._portions, self._labels = [(arrays["first"], arrays["second"])], None
        self._users = int(arrays["users"])
        self._rng.bit_generator.state = json.loads(arrays["generator"].tobytes())

    def delete_far(self, theta: Floats, count: Counts, factor: float) -> int:
        """Alg. 2, line 3: delete the edges that Eq. 3 condemns; returns how many."""
        first, second = self._edges()
        far = np.empty(len(first), dtype=np.bool_)
        far_apart(theta, count, first, second, float(factor), far)
        deleted = int(np.count_nonzero(far))
        if deleted:
            self._portions, self._labels = [(first[~far], second[~far])], None
        return deleted

    def components(self) -> Indices:
        """One label per user, numbered by first user; found again only when the graph has changed."""
        if self._labels is None:
            self._labels = components(self._users, *self._edges())
        return self._labels.copy()


@compiled
def _squared_error(gram: Matrix, moment: Vector, theta: Vector) -> float:
    """Σ(y − θᵀx)² − Σy² of the observations in (V, b); no θ changes Σy²."""
    d = len(theta)
    error = 0.0
    for i in range(d):
        error -= 2.0 * moment[i] * theta[i]
        for j in range(d):
            error += theta[i] * gram[i, j] * theta[j]
    return error


@compiled
def most_alike(gram: Matrix, moment: Vector, theta: Floats, count: Counts) -> int:
    """The cluster whose estimate predicts a user's data best; of equals the one with most data."""
    best, least = 0, _squared_error(gram, moment, theta[0])
    for c in range(1, len(count)):
        error = _squared_error(gram, moment, theta[c])
        if error < least or (error == least and count[c] > count[best]):
            best, least = c, error
    return best


@compiled
def _close_pairs(theta: Floats, count: Counts, server: Indices, factor: float, close: Flags) -> None:
    rows = theta.shape[0]
    for i in range(rows):
        for j in range(i + 1, rows):
            if server[i] != server[j]:
                allowed = allowance(float(count[i]), float(count[j]), factor)
                close[i, j] = distance(theta[i], theta[j]) < allowed


def merge(theta: Floats, count: Counts, server: Indices, factor: float) -> Indices:
    """Eq. 4: global cluster of every local cluster, numbered by first member.

    Only clusters of different servers are compared; two of one server can meet through a third.
    """
    close = np.zeros((len(theta), len(theta)), dtype=np.bool_)
    _close_pairs(theta, count, server, float(factor), close)
    first, second = np.nonzero(close)
    return components(len(theta), first, second)


def _pairs(counts: Indices) -> float:
    return float(np.sum(counts * (counts - 1)) / 2)


def adjusted_rand_index(found: Indices, true: Indices) -> float:
    """1 for equal partitions, about 0 for unrelated ones (Hubert and Arabie 1985)."""
    _, a = np.unique(found, return_inverse=True)
    _, b = np.unique(true, return_inverse=True)
    width = int(b.max()) + 1
    both = _pairs(np.unique(a.astype(np.int64) * width + b, return_counts=True)[1])
    first, second = _pairs(np.bincount(a)), _pairs(np.bincount(b))
    expected = first * second / max(1.0, _pairs(np.array([len(a)])))
    largest = 0.5 * (first + second)
    return 1.0 if largest == expected else (both - expected) / (largest - expected)
