"""Rounds of a whole federation of the paper's policies on the packed arrays of all its servers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import inner
from fclub.core.lattice import on_grid, snap
from fclub.core.noise import draw_symmetric
from fclub.core.paper.federation import (
    GlobalClusters,
    LocalClusters,
    absorb,
    add_statistics,
    download_due,
    receive_upload,
    release,
    take_download,
)
from fclub.core.paper.federation import recommend as recommend_to
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import Packed, observe
from fclub.core.types import Counts, Indices, Matrix, Vector


class FederatedRound(NamedTuple):
    """Local cluster c is row c of `local` and member c of `merged`; users are sorted by server."""

    users: Packed
    local: LocalClusters
    merged: GlobalClusters
    row_of: Indices
    cluster_of: Indices
    events: Counts
    noise: np.random.Generator
    rules: Rules


@inner
def recommend(state: FederatedRound, user: int, items: Matrix) -> int:
    c = state.cluster_of[state.row_of[user]]
    return recommend_to(state.local, c, items, state.rules)


@inner
def feedback(state: FederatedRound, user: int, x: Vector, y: float) -> None:
    """`Edges.observe` and `ClusterGlobal.receive` with an upload that goes nowhere."""
    if state.rules.noise_std > 0.0:
        _learn(state, user, snap(x, 0.0), on_grid(y))
    else:
        _learn(state, user, x, y)


@inner
def _learn(state: FederatedRound, user: int, x: Vector, y: float) -> None:
    row = state.row_of[user]
    c = state.cluster_of[row]
    observe(state.users, row, x, y)
    if absorb(state.local, c, x, y, state.rules):
        d = x.shape[0]
        gram, moment = np.empty((d, d)), np.empty(d)
        side = d + 1 if state.rules.noise_std > 0.0 else 0
        drawn = np.empty((side, side))
        draw_symmetric(state.noise, state.rules.noise_std, drawn)
        count = release(state.local, c, drawn, state.rules, gram, moment)
        receive_upload(state.merged, c, gram, moment, count, state.rules)
        state.events[0] += 1
        k = state.merged.group[c]
        for position in range(state.merged.starts[k], state.merged.starts[k + 1]):
            other = state.merged.members[position]
            if download_due(state.merged, other, state.rules):
                count = take_download(state.merged, other, gram, moment)
                add_statistics(state.local, other, gram, moment, count)
                state.events[1] += 1
