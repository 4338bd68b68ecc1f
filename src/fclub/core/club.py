"""Rounds of CLUB (Gentile, Li, Zappella 2014), one instance per local server.

The instances share arrays: a user's neighbours are always of its own server.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import add_matrix, add_scaled, choose, clear, distance, width
from fclub.core.models import Models, learn, refresh_model
from fclub.core.types import Counts, Flags, Indices, Matrix, Vector


class Club(NamedTuple):
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
def recommend(state: Club, user: int, items: Matrix) -> int:
    """The cluster's estimate with the bonus α·√(xᵀM⁻¹x · log(t+1))."""
    c = state.cluster_of[user]
    t = float(state.rounds[state.server_of[user]] + 1)
    radius = state.exploration * sqrt(log(t + 1.0))
    return choose(items, state.clusters.theta[c], state.clusters.inverse[c], radius)


@compiled
def feedback(state: Club, user: int, x: Vector, y: float) -> None:
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
def _reach(state: Club, start: int, reached: Flags) -> None:
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
def _connected(state: Club, start: int, goal: int) -> bool:
    reached = np.zeros(state.cluster_of.shape[0], dtype=np.bool_)
    _reach(state, start, reached)
    return bool(reached[goal])


@inner
def _split(state: Club, start: int) -> None:
    """Give the component of `start` a cluster of its own, out of the one it was part of."""
    reached = np.zeros(state.cluster_of.shape[0], dtype=np.bool_)
    _reach(state, start, reached)
    old, new = state.cluster_of[start], state.clusters_used[0]
    state.clusters_used[0] += 1
    clear_cluster(state.clusters, old)
    clear_cluster(state.clusters, new)
    for user in range(state.cluster_of.shape[0]):
        if reached[user]:
            state.cluster_of[user] = new
        if state.cluster_of[user] == old or state.cluster_of[user] == new:
            add_user(state.clusters, state.cluster_of[user], state.users, user)
    refresh_model(state.clusters, old, state.ridge)
    refresh_model(state.clusters, new, state.ridge)


@inner
def clear_cluster(clusters: Models, row: int) -> None:
    clear(clusters.gram[row], clusters.moment[row])
    clusters.counts[row] = 0


@inner
def add_user(clusters: Models, row: int, users: Models, user: int) -> None:
    """Add a user's statistics to a cluster's; the cluster has to be refreshed afterwards."""
    add_matrix(clusters.gram[row], users.gram[user], 1.0)
    add_scaled(clusters.moment[row], users.moment[user], 1.0)
    clusters.counts[row] += users.counts[user]
