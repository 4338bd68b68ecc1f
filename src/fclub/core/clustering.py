"""Finding clusters: the user graph with permanent deletions (Eq. 3) and the global merge (Eq. 4)."""

from __future__ import annotations

import json
from math import ceil, log
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fclub.core.compiling import compiled
from fclub.core.kernels import distance, width
from fclub.core.types import Counts, Edges, Flags, Floats, Indices

PORTION = 1 << 16
"""Edges that are looked at together when components are worked out, unless there are more users."""

DENSE_USERS = 2_000
"""Up to so many users a server's graph starts complete; above, it starts as a sparse random graph."""


@compiled
def far_apart(
    theta: Floats, count: Counts, first: Edges, second: Edges, factor: float, far: Flags
) -> None:
    """Eq. 3 for a list of pairs: ‖θ̂₁ − θ̂₂‖ > factor·(F(T₁) + F(T₂))."""
    for e in range(first.shape[0]):
        i, j = first[e], second[e]
        threshold = factor * (width(float(count[i])) + width(float(count[j])))
        far[e] = distance(theta[i], theta[j]) > threshold


def number_by_first(labels: Indices | Edges) -> Indices:
    """Rename labels to 0, 1, … in the order in which they first appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]


def components(nodes: int, first: Edges | Indices, second: Edges | Indices) -> Indices:
    """Connected components of an undirected graph, numbered by their first node.

    Edges are taken in portions: the components so far are the nodes of the next portion's graph, so
    the memory needed beside the edges is that of one portion.
    """
    labels = np.arange(nodes, dtype=np.int32)
    portion = max(nodes, PORTION)
    for start in range(0, len(first), portion):
        a, b = labels[first[start : start + portion]], labels[second[start : start + portion]]
        apart = a != b
        labels = _components(int(labels.max()) + 1, a[apart], b[apart])[labels]
    return number_by_first(labels)


def _components(nodes: int, first: Edges, second: Edges) -> Edges:
    links = coo_array((np.ones(len(first), dtype=np.bool_), (first, second)), shape=(nodes, nodes))
    labels: Edges = connected_components(links, directed=False)[1]
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
            self.first, self.second = sparse_edges(users, sparse_clusters, rng)
        else:
            self.first, self.second = complete_edges(users)

    @property
    def users(self) -> int:
        return self._users

    def __len__(self) -> int:
        return len(self.first)

    def add_user(self) -> int:
        """Join a new user to all others, or to O(log n) random ones of a sparse graph."""
        new, self._users = self._users, self._users + 1
        if new > 1 and (self._sparse or new >= DENSE_USERS):
            degree = min(new, sparse_degree(self._users, self._clusters))
            others = self._rng.choice(new, size=degree, replace=False).astype(np.int32)
        else:
            others = np.arange(new, dtype=np.int32)
        self.first = np.concatenate([self.first, others])
        self.second = np.concatenate([self.second, np.full(len(others), new, dtype=np.int32)])
        return new

    def arrays(self) -> dict[str, Any]:
        """Edges, number of users and the state of the generator that draws new users' edges."""
        generator = json.dumps(self._rng.bit_generator.state).encode()
        return {
            "first": self.first,
            "second": self.second,
            "users": np.array(self._users),
            "generator": np.frombuffer(generator, dtype=np.uint8),
        }

    def restore(self, arrays: dict[str, Any]) -> None:
        self.first, self.second = arrays["first"], arrays["second"]
        self._users = int(arrays["users"])
        self._rng.bit_generator.state = json.loads(arrays["generator"].tobytes())

    def delete_far(self, theta: Floats, count: Counts, factor: float) -> int:
        """Alg. 2, line 3: delete the edges that Eq. 3 condemns; returns how many."""
        far = np.empty(len(self.first), dtype=np.bool_)
        far_apart(theta, count, self.first, self.second, float(factor), far)
        deleted = int(np.count_nonzero(far))
        if deleted:
            self.first, self.second = self.first[~far], self.second[~far]
        return deleted

    def components(self) -> Indices:
        """One label per user, numbered by first user."""
        return components(self._users, self.first, self.second)


@compiled
def _close_pairs(theta: Floats, count: Counts, server: Indices, factor: float, close: Flags) -> None:
    rows = theta.shape[0]
    for i in range(rows):
        for j in range(i + 1, rows):
            if server[i] != server[j]:
                threshold = factor * (width(float(count[i])) + width(float(count[j])))
                close[i, j] = distance(theta[i], theta[j]) < threshold


def merge(theta: Floats, count: Counts, server: Indices, factor: float) -> Indices:
    """Eq. 4: global cluster of every local cluster, numbered by first member.

    Only clusters of different servers are compared; two of one server can meet through a third.
    """
    close = np.zeros((len(theta), len(theta)), dtype=np.bool_)
    _close_pairs(theta, count, server, float(factor), close)
    first, second = np.nonzero(close)
    return components(len(theta), first, second)
