"""`club`: CLUB (Gentile, Li, Zappella 2014), one instance per local server.

The instances share arrays: a user's neighbours are always of its own server.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Deletion, Exploration, Problem, Ridge, Sparse, SparseClusters
from fclub.core.clustering import UserGraph, number_by_first
from fclub.core.compiling import compiled, inner
from fclub.core.kernels import choose, distance, width
from fclub.core.models import Models, add_user, clear_model, learn, refresh_model
from fclub.core.types import Counts, Flags, Floats, Indices, Matrix, Vector
from fclub.policies.base import KernelPolicy, Rows


class ClubState(NamedTuple):
    """`neighbour[starts[i]:starts[i+1]]` are the users that i had an edge to, `alive` which remain.

    `mirror[e]` is the position of the same edge seen from its other end. `rounds` counts the rounds
    of each server; `clusters_used[0]` is the number of cluster rows in use.
    """

    users: Models
    clusters: Models
    cluster_of: Indices
    server_of: Indices
    rounds: Counts
    starts: Indices
    neighbour: Indices
    mirror: Indices
    alive: Flags
    clusters_used: Counts
    ridge: float
    exploration: float
    deletion: float


@compiled
def recommend(state: ClubState, user: int, items: Matrix) -> int:
    """The cluster's estimate with the bonus α·√(xᵀM⁻¹x · log(t+1))."""
    c = state.cluster_of[user]
    t = float(state.rounds[state.server_of[user]] + 1)
    radius = state.exploration * sqrt(log(t + 1.0))
    return choose(items, state.clusters.theta[c], state.clusters.inverse[c], radius)


@compiled
def feedback(state: ClubState, user: int, x: Vector, y: float) -> None:
    """Learn, then delete the user's edges to those who have become too different."""
    learn(state.users, user, x, y, state.ridge)
    learn(state.clusters, state.cluster_of[user], x, y, state.ridge)
    state.rounds[state.server_of[user]] += 1
    own = width(float(state.users.counts[user]))
    for e in range(state.starts[user], state.starts[user + 1]):
        if state.alive[e]:
            other = state.neighbour[e]
            threshold = state.deletion * (own + width(float(state.users.counts[other])))
            if distance(state.users.theta[user], state.users.theta[other]) > threshold:
                state.alive[e] = False
                state.alive[state.mirror[e]] = False
                if not _connected(state, other, user):
                    _split(state, other)


@inner
def _reach(state: ClubState, start: int, reached: Flags) -> None:
    """Mark all users in the component of `start`."""
    stack = [start]
    reached[start] = True
    while len(stack) > 0:
        node = stack.pop()
        for e in range(state.starts[node], state.starts[node + 1]):
            other = state.neighbour[e]
            if state.alive[e] and not reached[other]:
                reached[other] = True
                stack.append(other)


@inner
def _connected(state: ClubState, start: int, goal: int) -> bool:
    reached = np.zeros(state.cluster_of.shape[0], dtype=np.bool_)
    _reach(state, start, reached)
    return bool(reached[goal])


@inner
def _split(state: ClubState, start: int) -> None:
    """Give the component of `start` a cluster of its own, out of the one it was part of."""
    reached = np.zeros(state.cluster_of.shape[0], dtype=np.bool_)
    _reach(state, start, reached)
    old, new = state.cluster_of[start], state.clusters_used[0]
    state.clusters_used[0] += 1
    clear_model(state.clusters, old)
    clear_model(state.clusters, new)
    for user in range(state.cluster_of.shape[0]):
        if reached[user]:
            state.cluster_of[user] = new
        if state.cluster_of[user] == old or state.cluster_of[user] == new:
            add_user(state.clusters, state.cluster_of[user], state.users, user)
    refresh_model(state.clusters, old, state.ridge)
    refresh_model(state.clusters, new, state.ridge)


def adjacency(
    rows: Rows, seed: SeedSequence, sparse: bool | None, sparse_clusters: int
) -> tuple[Indices, Indices, Indices]:
    """Neighbour lists of all users from a graph for each server, and where an edge's twin is."""
    sizes = np.diff(rows.first)
    rngs = [np.random.default_rng(one) for one in seed.spawn(len(sizes))]
    graphs = [
        UserGraph(int(n), rng, sparse, sparse_clusters) for n, rng in zip(sizes, rngs, strict=True)
    ]
    first = np.concatenate([rows.user_of[g.first + rows.first[s]] for s, g in enumerate(graphs)])
    second = np.concatenate([rows.user_of[g.second + rows.first[s]] for s, g in enumerate(graphs)])
    ends, others = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.argsort(ends, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    twin = (order + len(first)) % max(1, len(order))
    starts = np.searchsorted(ends[order], np.arange(len(rows.row_of) + 1))
    return starts.astype(np.int64), others[order].astype(np.int64), place[twin]


class Club(KernelPolicy[ClubState]):
    """One CLUB per local server (Gentile et al. 2014): α₁ is `deletion`, their α is `exploration`.

    >>> import fclub
    >>> fclub.simulate(fclub.Club(deletion=1.5), "synthetic", rounds=500)
    <Trace of club in synthetic, seed 0: 500 rounds, regret ...>
    """

    kernels = (recommend, feedback)

    ridge: Ridge = 0.5
    exploration: Exploration = 0.3
    deletion: Deletion = 2.5
    sparse: Sparse = None
    sparse_clusters: SparseClusters = 4

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> ClubState:
        rows = Rows.by_server(server_of, problem.servers)
        starts, neighbour, mirror = adjacency(rows, seed, self.sparse, self.sparse_clusters)
        n = problem.users
        return ClubState(
            users=Models.zeros(n, problem.dim, self.ridge),
            clusters=Models.zeros(n + problem.servers, problem.dim, self.ridge),
            cluster_of=server_of.copy(),
            server_of=server_of,
            rounds=np.zeros(problem.servers, dtype=np.int64),
            starts=starts,
            neighbour=neighbour,
            mirror=mirror,
            alive=np.ones(len(neighbour), dtype=np.bool_),
            clusters_used=np.array([problem.servers]),
            ridge=self.ridge,
            exploration=self.exploration,
            deletion=self.deletion,
        )

    @property
    def labels_(self) -> Indices:
        return number_by_first(self._state.cluster_of)

    @property
    def theta_(self) -> Floats:
        return self._state.clusters.theta[self._state.cluster_of]
