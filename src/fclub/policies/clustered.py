"""`club` and `sclub`: one instance of a centralised clustering bandit per local server."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Deletion, Exploration, Problem, Ridge, Sparse, SparseClusters
from fclub.core import club, sclub
from fclub.core.clustering import UserGraph, number_by_first
from fclub.core.models import Models
from fclub.core.types import Floats, Indices
from fclub.parameters import meaning
from fclub.policies.kernel import KernelPolicy
from fclub.policies.rows import Rows


def _adjacency(graphs: list[UserGraph], rows: Rows) -> tuple[Indices, Indices, Indices]:
    """Neighbour lists of all users from the graphs of the servers, and where an edge's twin is."""
    first = np.concatenate([rows.user_of[g.first + rows.first[s]] for s, g in enumerate(graphs)])
    second = np.concatenate([rows.user_of[g.second + rows.first[s]] for s, g in enumerate(graphs)])
    ends, others = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.argsort(ends, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    twin = (order + len(first)) % max(1, len(order))
    starts = np.searchsorted(ends[order], np.arange(len(rows.row_of) + 1))
    return starts.astype(np.int64), others[order].astype(np.int64), place[twin]


class Club(KernelPolicy[club.Club]):
    """One CLUB per local server (Gentile et al. 2014): α₁ is `deletion`, their α is `exploration`.

    >>> import fclub
    >>> fclub.simulate(fclub.Club(deletion=1.5), "synthetic", rounds=500)
    <Trace of club in synthetic, seed 0: 500 rounds, regret ...>
    """

    kernels = (club.recommend, club.feedback)

    ridge: Ridge = 0.5
    exploration: Exploration = 0.3
    deletion: Deletion = 2.5
    sparse: Sparse = None
    sparse_clusters: SparseClusters = 4

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> club.Club:
        rows = Rows.by_server(server_of, problem.servers)
        rngs = [np.random.default_rng(s) for s in seed.spawn(problem.servers)]
        graphs = [
            UserGraph(int(n), rng, self.sparse, self.sparse_clusters)
            for n, rng in zip(np.diff(rows.first), rngs, strict=True)
        ]
        starts, neighbour, mirror = _adjacency(graphs, rows)
        n = problem.users
        return club.Club(
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


class Sclub(KernelPolicy[sclub.Sclub]):
    """One SCLUB per local server (Li et al. 2019): `deletion` is their α_θ, `frequency` their α_p.

    >>> import fclub
    >>> fclub.simulate(fclub.Sclub(), "synthetic", rounds=500)
    <Trace of sclub in synthetic, seed 0: 500 rounds, regret ...>
    """

    kernels = (sclub.recommend, sclub.feedback)

    ridge: Ridge = 1.0
    exploration: Exploration = 0.02
    deletion: Deletion = 2.5
    frequency: Annotated[
        float, meaning("the larger, the later users are told apart by how often they come", above=0)
    ] = 2.0

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> sclub.Sclub:
        rows = Rows.by_server(server_of, problem.servers)
        n, d = problem.users, problem.dim
        size = np.zeros(n, dtype=np.int64)
        occupied = np.diff(rows.first) > 0
        size[rows.first[:-1][occupied]] = np.diff(rows.first)[occupied]
        self._rows = rows
        return sclub.Sclub(
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
