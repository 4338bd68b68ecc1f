"""`sclub`: SCLUB (Li, Chen, Li, Leung 2019), one instance per local server.

Clusters are sets of users that lose a user when it has become too different from the set (split) and
join when all their users have been looked at in this stage and they are alike (merge). Stages of an
instance have 2, 4, 8, … rounds.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Annotated, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Deletion, Exploration, Problem, Ridge
from fclub.core.clustering import number_by_first
from fclub.core.compiling import compiled, inner
from fclub.core.kernels import choose, distance, set_vector, width
from fclub.core.models import Models, add_user, clear_model, learn, refresh_model
from fclub.core.types import Counts, Flags, Floats, Indices, Matrix, Vector
from fclub.parameters import meaning
from fclub.policies.base import KernelPolicy, Rows


class SclubState(NamedTuple):
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
def recommend(state: SclubState, user: int, items: Matrix) -> int:
    """The cluster's estimate with the radius √(d·ln(1+T/d) + 2·ln(4n)) of the paper's analysis."""
    c = state.cluster_of[state.row_of[user]]
    d, n = items.shape[1], state.cluster_of.shape[0]
    growth = d * log(1.0 + state.clusters.counts[c] / d) + 2.0 * log(4.0 * n)
    radius = state.exploration * sqrt(growth)
    return choose(items, state.clusters.theta[c], state.clusters.inverse[c], radius)


@compiled
def feedback(state: SclubState, user: int, x: Vector, y: float) -> None:
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
def _begin_stage_if_due(state: SclubState, server: int) -> None:
    """Stage s begins after 2^s − 2 rounds: forget who was checked, remember the estimates."""
    marker = state.rounds[server] + 2
    if marker & (marker - 1) == 0:
        for row in range(state.first_user[server], state.first_user[server + 1]):
            state.checked[row] = False
            _remember(state, row)


@inner
def _remember(state: SclubState, c: int) -> None:
    set_vector(state.stage_theta[c], state.clusters.theta[c])
    state.stage_count[c] = state.clusters.counts[c]


@inner
def _has_left(state: SclubState, user: int) -> bool:
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
def _split(state: SclubState, user: int) -> None:
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
def _recount(state: SclubState, server: int, c: int) -> None:
    """A cluster's statistics from those of its users."""
    clear_model(state.clusters, c)
    for user in range(state.first_user[server], state.first_user[server + 1]):
        if state.cluster_of[user] == c:
            add_user(state.clusters, c, state.users, user)
    refresh_model(state.clusters, c, state.ridge)


@inner
def _all_checked(state: SclubState, server: int, c: int) -> bool:
    for user in range(state.first_user[server], state.first_user[server + 1]):
        if state.cluster_of[user] == c and not state.checked[user]:
            return False
    return True


@inner
def _merge(state: SclubState, user: int) -> None:
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


class Sclub(KernelPolicy[SclubState]):
    """One SCLUB per local server (Li et al. 2019): `deletion` is their α_θ, `frequency` their α_p.

    >>> import fclub
    >>> fclub.simulate(fclub.Sclub(), "synthetic", rounds=500)
    <Trace of sclub in synthetic, seed 0: 500 rounds, regret ...>
    """

    kernels = (recommend, feedback)

    ridge: Ridge = 1.0
    exploration: Exploration = 0.02
    deletion: Deletion = 2.5
    frequency: Annotated[
        float, meaning("the larger, the later users are told apart by how often they come", above=0)
    ] = 2.0

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> SclubState:
        rows = Rows.by_server(server_of, problem.servers)
        n, d = problem.users, problem.dim
        size = np.zeros(n, dtype=np.int64)
        occupied = np.diff(rows.first) > 0
        size[rows.first[:-1][occupied]] = np.diff(rows.first)[occupied]
        self._rows = rows
        return SclubState(
            users=Models.zeros(n, d, self.ridge),
            clusters=Models.zeros(n, d, self.ridge),
            row_of=rows.row_of,
            cluster_of=rows.first[rows.server],
            size=size,
            checked=np.zeros(n, dtype=np.bool_),
            stage_theta=np.zeros((n, d)),
            stage_count=np.zeros(n, dtype=np.int64),
            server_of=rows.server,
            first_user=rows.first,
            rounds=np.zeros(problem.servers, dtype=np.int64),
            ridge=self.ridge,
            exploration=self.exploration,
            deletion=self.deletion,
            frequency=self.frequency,
        )

    @property
    def labels_(self) -> Indices:
        return number_by_first(self._state.cluster_of[self._rows.row_of])

    @property
    def theta_(self) -> Floats:
        return self._state.clusters.theta[self._state.cluster_of[self._rows.row_of]]
