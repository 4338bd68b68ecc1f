"""The arithmetic of a round, an upload and a download (Alg. 1, 3, 4) on packed arrays.

Learners and exchanges call these one at a time; the compiled loop of `fclub.simulation` calls
the same functions on the arrays of all servers together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled, inner
from fclub.core.kernels import (
    add_matrix,
    add_outer,
    add_scaled,
    choose,
    clear,
    grow_inverse,
    invert,
    log_determinant,
    multiply,
    set_matrix,
    set_vector,
)
from fclub.core.lattice import MOST_OBSERVATIONS
from fclub.core.noise import advance_tree
from fclub.core.paper.ucb import Rules, confidence_radius
from fclub.core.types import Counts, Flags, Floats, Indices, Matrix, Vector


class LocalClusters(NamedTuple):
    """State of local clusters, one row each.

    `gram`, `moment`, `count` are the synchronised S, u, T; `buffer_*` the upload buffers ΔS, Δu, ΔT
    with the noise of their release already in them. `inverse`, `theta`, `radius` are what scoring
    needs, `trial_inverse` is (S+ΔS)⁻¹ and `growth` = log det(S+ΔS) − log det S; all five are valid
    while `fresh`. `noise` is the accumulated perturbation H of the privatizer whose last `leaves`-th
    partial sum is in the buffer.
    """

    gram: Floats
    moment: Floats
    counts: Counts
    buffer_gram: Floats
    buffer_moment: Floats
    buffer_count: Counts
    inverse: Floats
    theta: Floats
    radius: Floats
    trial_inverse: Floats
    growth: Floats
    fresh: Flags
    sharing: Counts
    nodes: Floats
    noise: Floats
    leaves: Counts

    @staticmethod
    def zeros(rows: int, dim: int, depth: int) -> LocalClusters:
        side = dim + 1 if depth else 0
        return LocalClusters(
            gram=np.zeros((rows, dim, dim)),
            moment=np.zeros((rows, dim)),
            counts=np.zeros(rows, dtype=np.int64),
            buffer_gram=np.zeros((rows, dim, dim)),
            buffer_moment=np.zeros((rows, dim)),
            buffer_count=np.zeros(rows, dtype=np.int64),
            inverse=np.zeros((rows, dim, dim)),
            theta=np.zeros((rows, dim)),
            radius=np.zeros(rows),
            trial_inverse=np.zeros((rows, dim, dim)),
            growth=np.zeros(rows),
            fresh=np.zeros(rows, dtype=np.bool_),
            sharing=np.ones(rows, dtype=np.int64),
            nodes=np.zeros((rows, depth, side, side)),
            noise=np.zeros((rows, side, side)),
            leaves=np.zeros(rows, dtype=np.int64),
        )

    @staticmethod
    def first(rows: int, dim: int, depth: int, rules: Rules) -> LocalClusters:
        """One cluster of all users, before the first plan; none if there are no users."""
        clusters = LocalClusters.zeros(rows, dim, depth)
        clusters.gram[:] = rules.report_shift * np.eye(dim)
        return clusters


@inner
def refresh(clusters: LocalClusters, c: int, rules: Rules) -> None:
    """Recompute what scoring and the upload test need from the statistics."""
    d = clusters.moment.shape[1]
    logdet = invert(clusters.gram[c], clusters.inverse[c])
    multiply(clusters.inverse[c], clusters.moment[c], clusters.theta[c])
    clusters.radius[c] = confidence_radius(
        float(clusters.counts[c]), float(clusters.sharing[c]), d, rules
    )
    if rules.log_upload == 0.0 and rules.noise_std == 0.0:
        clusters.growth[c] = 0.0
    elif clusters.buffer_count[c] == 0 and rules.noise_std == 0.0:
        set_matrix(clusters.trial_inverse[c], clusters.inverse[c])
        clusters.growth[c] = 0.0
    else:
        trial = clusters.gram[c].copy()
        add_matrix(trial, clusters.buffer_gram[c], 1.0)
        clusters.growth[c] = invert(trial, clusters.trial_inverse[c]) - logdet
    clusters.fresh[c] = True


@compiled
def recommend(clusters: LocalClusters, c: int, items: Matrix, rules: Rules) -> int:
    """Alg. 1: the item with the largest upper confidence bound under S, u."""
    if not clusters.fresh[c]:
        refresh(clusters, c, rules)
    return choose(items, clusters.theta[c], clusters.inverse[c], clusters.radius[c])


@compiled
def absorb(clusters: LocalClusters, c: int, x: Vector, y: float, rules: Rules) -> bool:
    """Alg. 3, lines 1–2: take an observation into the buffer; is an upload due?

    With U = 1 every observation is uploaded. A privatizer that has no leaf left forbids the upload, and
    so does a sum that may not be exact: the data wait in the buffer for the next phase.
    """
    if not clusters.fresh[c]:
        refresh(clusters, c, rules)
    add_outer(clusters.buffer_gram[c], x, 1.0)
    add_scaled(clusters.buffer_moment[c], x, y)
    clusters.buffer_count[c] += 1
    if rules.log_upload > 0.0:
        clusters.growth[c] += grow_inverse(clusters.trial_inverse[c], x, 1.0)
    exact = clusters.buffer_count[c] <= MOST_OBSERVATIONS
    if rules.noise_std > 0.0 and (clusters.leaves[c] > rules.uploads or not exact):
        return False
    return rules.log_upload == 0.0 or clusters.growth[c] >= rules.log_upload


@compiled
def renew_buffer(clusters: LocalClusters, c: int, drawn: Matrix, rules: Rules) -> None:
    """(ΔS, Δu, ΔT) = (3ρI + H_new − H̄, h_new − h̄, 0), H̄ being the perturbation just released."""
    d = clusters.moment.shape[1]
    clear(clusters.buffer_gram[c], clusters.buffer_moment[c])
    clusters.buffer_count[c] = 0
    if rules.noise_std > 0.0:
        released = clusters.noise[c].copy()
        clusters.leaves[c] += 1
        advance_tree(clusters.nodes[c], clusters.leaves[c], drawn, clusters.noise[c])
        for i in range(d):
            for j in range(d):
                clusters.buffer_gram[c, i, j] = clusters.noise[c, i, j] - released[i, j]
            clusters.buffer_gram[c, i, i] += rules.upload_shift
            clusters.buffer_moment[c, i] = clusters.noise[c, i, d] - released[i, d]
    clusters.fresh[c] = False


@compiled
def release(
    clusters: LocalClusters,
    c: int,
    drawn: Matrix,
    rules: Rules,
    gram: Matrix,
    moment: Vector,
) -> int:
    """Alg. 3, lines 8–10: hand out the buffer as a message, add it to S, u, T, restart the buffer.

    `drawn` is new noise for the release after this one. Returns the count of the message.
    """
    count = int(clusters.buffer_count[c])
    set_matrix(gram, clusters.buffer_gram[c])
    set_vector(moment, clusters.buffer_moment[c])
    add_statistics(clusters, c, gram, moment, count)
    renew_buffer(clusters, c, drawn, rules)
    return count


@compiled
def add_statistics(clusters: LocalClusters, c: int, gram: Matrix, moment: Vector, count: int) -> None:
    """(S, u, T) += a message: the sender's own upload, or a download (Alg. 4, line 3)."""
    add_matrix(clusters.gram[c], gram, 1.0)
    add_scaled(clusters.moment[c], moment, 1.0)
    clusters.counts[c] += count
    clusters.fresh[c] = False


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
    """The two log-determinants of Eq. 6 after an upload; with D = 1 they are not needed."""
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
