"""Rounds of SCLUB (Li, Chen, Li, Leung 2019), one instance per local server.

Clusters are sets of users that lose a user when it has become too different from the set (split) and
join when all their users have been looked at in this stage and they are alike (merge). Stages of an
instance have 2, 4, 8, … rounds.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

from fclub.core.club import add_user, clear_cluster
from fclub.core.compiling import compiled, inner
from fclub.core.kernels import choose, distance, set_vector, width
from fclub.core.models import Models, learn, refresh_model
from fclub.core.types import Counts, Flags, Floats, Indices, Matrix, Vector


class Sclub(NamedTuple):
    """`stage_theta` and `stage_count` are a cluster's estimate and count when the stage began.

    Users are in rows sorted by server: `row_of[user]` is a user's row, `first_user[s]:first_user[s+1]`
    are the rows of server s, and its clusters use the same row numbers, so there is always room for
    one more.
    """

    users: Models
    clusters: Models
    row_of: Indices
    cluster_of: Indices
    size: Counts
    checked: Flags
    stage_theta: Floats
    stage_count: Counts
    server_of: Indices
    first_user: Indices
    rounds: Counts
    ridge: float
    exploration: float
    deletion: float
    frequency: float


@compiled
def recommend(state: Sclub, user: int, items: Matrix) -> int:
    """The cluster's estimate with the radius √(d·ln(1+T/d) + 2·ln(4n)) of the paper's analysis."""
    c = state.cluster_of[state.row_of[user]]
    d, n = items.shape[1], state.cluster_of.shape[0]
    growth = d * log(1.0 + state.clusters.counts[c] / d) + 2.0 * log(4.0 * n)
    radius = state.exploration * sqrt(growth)
    return choose(items, state.clusters.theta[c], state.clusters.inverse[c], radius)


@compiled
def feedback(state: Sclub, user: int, x: Vector, y: float) -> None:
    row = state.row_of[user]
    server = state.server_of[row]
    _begin_stage_if_due(state, server)
    learn(state.users, row, x, y, state.ridge)
    learn(state.clusters, state.cluster_of[row], x, y, state.ridge)
    state.rounds[server] += 1
    if _has_left(state, row):
        _split(state, row)
    state.checked[row] = True
    _merge(state, row)


@inner
def _begin_stage_if_due(state: Sclub, server: int) -> None:
    """Stage s begins after 2^s − 2 rounds: forget who was checked, remember the estimates."""
    marker = state.rounds[server] + 2
    if marker & (marker - 1) == 0:
        for row in range(state.first_user[server], state.first_user[server + 1]):
            state.checked[row] = False
            _remember(state, row)


@inner
def _remember(state: Sclub, c: int) -> None:
    set_vector(state.stage_theta[c], state.clusters.theta[c])
    state.stage_count[c] = state.clusters.counts[c]


@inner
def _has_left(state: Sclub, user: int) -> bool:
    """Is the user too far from its cluster's estimate, or does it arrive much more or less often?"""
    c = state.cluster_of[user]
    if state.size[c] == 1:
        return False
    own = width(float(state.users.counts[user]))
    threshold = state.deletion * (own + width(float(state.stage_count[c])))
    if distance(state.users.theta[user], state.stage_theta[c]) > threshold:
        return True
    server = state.server_of[user]
    t = float(state.rounds[server])
    gap = 2.0 * state.frequency * width(t) * t
    for other in range(state.first_user[server], state.first_user[server + 1]):
        apart = abs(state.users.counts[user] - state.users.counts[other])
        if state.cluster_of[other] == c and apart > gap:
            return True
    return False


@inner
def _split(state: Sclub, user: int) -> None:
    """Move a user from its cluster into an empty one."""
    server, old = state.server_of[user], state.cluster_of[user]
    new = state.first_user[server]
    while state.size[new] > 0:
        new += 1
    state.cluster_of[user] = new
    state.size[old] -= 1
    state.size[new] = 1
    _recount(state, server, old)
    _recount(state, server, new)
    _remember(state, new)


@inner
def _recount(state: Sclub, server: int, c: int) -> None:
    """A cluster's statistics from those of its users."""
    clear_cluster(state.clusters, c)
    for user in range(state.first_user[server], state.first_user[server + 1]):
        if state.cluster_of[user] == c:
            add_user(state.clusters, c, state.users, user)
    refresh_model(state.clusters, c, state.ridge)


@inner
def _all_checked(state: Sclub, server: int, c: int) -> bool:
    for user in range(state.first_user[server], state.first_user[server + 1]):
        if state.cluster_of[user] == c and not state.checked[user]:
            return False
    return True


@inner
def _merge(state: Sclub, user: int) -> None:
    """Join the user's cluster with every checked cluster like it.

    Pairs without the visiting user wait for a visit of their own: testing all of them every round
    would cost a square of the clusters for a merge that comes a little earlier.
    """
    server, c = state.server_of[user], state.cluster_of[user]
    if not _all_checked(state, server, c):
        return
    t = float(state.rounds[server])
    for other in range(state.first_user[server], state.first_user[server + 1]):
        if other != c and state.size[other] > 0:
            widths = width(float(state.clusters.counts[c])) + width(float(state.clusters.counts[other]))
            near = distance(state.clusters.theta[c], state.clusters.theta[other])
            rate = state.clusters.counts[c] / state.size[c]
            other_rate = state.clusters.counts[other] / state.size[other]
            alike = near < 0.5 * state.deletion * widths
            as_often = abs(rate - other_rate) < state.frequency * width(t) * t
            if alike and as_often and _all_checked(state, server, other):
                for member in range(state.first_user[server], state.first_user[server + 1]):
                    if state.cluster_of[member] == other:
                        state.cluster_of[member] = c
                state.size[c] += state.size[other]
                state.size[other] = 0
                _recount(state, server, c)
                _remember(state, c)
