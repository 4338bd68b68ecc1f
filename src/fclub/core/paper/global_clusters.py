"""The global clusters as packed arrays: an upload comes in, downloads go out (Alg. 3 and 4)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import add_matrix, add_scaled, clear, log_determinant, set_matrix, set_vector
from fclub.core.paper.ucb import Rules
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector


class GlobalClusters(NamedTuple):
    """State of the global server: S^g, u^g, T^g per global cluster, download buffers per member.

    A member is a local cluster; `members[starts[k]:starts[k+1]]` are those of global cluster k.
    """

    gram: Floats
    moment: Floats
    counts: Counts
    logdet: Floats
    pending_gram: Floats
    pending_moment: Floats
    pending_count: Counts
    member_logdet: Floats
    group: Indices
    starts: Indices
    members: Indices

    @staticmethod
    def zeros(group: Indices, dim: int) -> GlobalClusters:
        rows = len(group)
        groups = int(group.max()) + 1 if rows else 0
        return GlobalClusters(
            gram=np.zeros((groups, dim, dim)),
            moment=np.zeros((groups, dim)),
            counts=np.zeros(groups, dtype=np.int64),
            logdet=np.zeros(groups),
            pending_gram=np.zeros((rows, dim, dim)),
            pending_moment=np.zeros((rows, dim)),
            pending_count=np.zeros(rows, dtype=np.int64),
            member_logdet=np.zeros(rows),
            group=group,
            starts=np.searchsorted(np.sort(group), np.arange(groups + 1)).astype(np.int64),
            members=np.argsort(group, kind="stable").astype(np.int64),
        )


@compiled
def receive_upload(
    state: GlobalClusters, member: int, gram: Matrix, moment: Vector, count: int, rules: Rules
) -> None:
    """Alg. 3, lines 4–7: add an upload to its global cluster and to the other members' buffers."""
    k = state.group[member]
    add_matrix(state.gram[k], gram, 1.0)
    add_scaled(state.moment[k], moment, 1.0)
    state.counts[k] += count
    for position in range(state.starts[k], state.starts[k + 1]):
        other = state.members[position]
        if other != member:
            add_matrix(state.pending_gram[other], gram, 1.0)
            add_scaled(state.pending_moment[other], moment, 1.0)
            state.pending_count[other] += count
    if rules.log_download > 0.0:
        _measure(state, member)


@inner
def _measure(state: GlobalClusters, member: int) -> None:
    """The two log-determinants of Eq. 6 after an upload; with D = 1 nobody asks for them."""
    k = state.group[member]
    state.logdet[k] = log_determinant(state.gram[k])
    if state.pending_count[member] == 0:
        state.member_logdet[member] = state.logdet[k]
    else:
        synchronised = state.gram[k].copy()
        add_matrix(synchronised, state.pending_gram[member], -1.0)
        state.member_logdet[member] = log_determinant(synchronised)


@compiled
def download_due(state: GlobalClusters, member: int, rules: Rules) -> bool:
    """Eq. 6 for one member, with something to send."""
    if state.pending_count[member] == 0:
        return False
    growth = state.logdet[state.group[member]] - state.member_logdet[member]
    return rules.log_download == 0.0 or growth >= rules.log_download


@compiled
def take_download(state: GlobalClusters, member: int, gram: Matrix, moment: Vector) -> int:
    """Alg. 4, lines 3–4: hand out a member's download buffer and empty it."""
    set_matrix(gram, state.pending_gram[member])
    set_vector(moment, state.pending_moment[member])
    count = int(state.pending_count[member])
    clear(state.pending_gram[member], state.pending_moment[member])
    state.pending_count[member] = 0
    state.member_logdet[member] = state.logdet[state.group[member]]
    return count
