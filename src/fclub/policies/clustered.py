"""`club` and `sclub`: one instance of a centralised clustering bandit per local server."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Parameter, Problem, Protocol, require
from fclub.core import club, sclub
from fclub.core.clustering import UserGraph, number_by_first
from fclub.core.models import Models
from fclub.core.types import Floats, Indices
from fclub.policies.kernel import KernelPolicy
from fclub.policies.rows import Rows

COMMON: dict[str, Parameter] = {"ridge": 1.0, "exploration": 0.5, "deletion": 2.0}


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


class ClubPolicy(KernelPolicy):
    """CLUB of Gentile, Li and Zappella (2014): α₁ is `deletion`, their α is `exploration`."""

    defaults: ClassVar[dict[str, Parameter]] = COMMON | {"sparse": None, "sparse_clusters": 4}
    kernels = (club.recommend, club.feedback)
    _state: club.Club

    def __init__(self, name: str, **parameters: Parameter) -> None:
        super().__init__(name, **parameters)
        self._constants = Protocol(**{k: self._parameters[k] for k in COMMON})  # type: ignore[arg-type]

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool) -> None:
        rows = Rows.by_server(server_of, problem.servers)
        rngs = [np.random.default_rng(s) for s in seed.spawn(problem.servers)]
        sizes = np.diff(rows.first)
        sparse, expected = self._parameters["sparse"], self._parameters["sparse_clusters"]
        graphs = [
            UserGraph(int(n), rng, sparse, expected)  # type: ignore[arg-type]
            for n, rng in zip(sizes, rngs, strict=True)
        ]
        starts, neighbour, mirror = _adjacency(graphs, rows)
        constants, n = self._constants, problem.users
        self._state = club.Club(
            users=Models.zeros(n, problem.dim, constants.ridge),
            clusters=Models.zeros(n + problem.servers, problem.dim, constants.ridge),
            cluster_of=server_of.copy(),
            server_of=server_of,
            rounds=np.zeros(problem.servers, dtype=np.int64),
            starts=starts,
            neighbour=neighbour,
            mirror=mirror,
            alive=np.ones(len(neighbour), dtype=np.bool_),
            clusters_used=np.array([problem.servers]),
            ridge=float(constants.ridge),
            exploration=float(constants.exploration),
            deletion=float(constants.deletion),
        )

    @property
    def labels_(self) -> Indices:
        return number_by_first(self._state.cluster_of)

    @property
    def theta_(self) -> Floats:
        return self._state.clusters.theta[self._state.cluster_of]


class SclubPolicy(KernelPolicy):
    """SCLUB of Li, Chen, Li and Leung (2019): `deletion` is their α_θ, `frequency` their α_p."""

    defaults: ClassVar[dict[str, Parameter]] = COMMON | {"frequency": 2.0}
    kernels = (sclub.recommend, sclub.feedback)
    _state: sclub.Sclub

    def __init__(self, name: str, **parameters: Parameter) -> None:
        super().__init__(name, **parameters)
        self._constants = Protocol(**{k: self._parameters[k] for k in COMMON})  # type: ignore[arg-type]
        frequency = self._parameters["frequency"]
        number = isinstance(frequency, int | float) and frequency > 0
        require(number, "frequency must be a number above 0", frequency)

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool) -> None:
        rows = Rows.by_server(server_of, problem.servers)
        constants, n, d = self._constants, problem.users, problem.dim
        size = np.zeros(n, dtype=np.int64)
        occupied = np.diff(rows.first) > 0
        size[rows.first[:-1][occupied]] = np.diff(rows.first)[occupied]
        self._rows = rows
        self._state = sclub.Sclub(
            users=Models.zeros(n, d, constants.ridge),
            clusters=Models.zeros(n, d, constants.ridge),
            row_of=rows.row_of,
            cluster_of=rows.first[rows.server],
            size=size,
            checked=np.zeros(n, dtype=np.bool_),
            stage_theta=np.zeros((n, d)),
            stage_count=np.zeros(n, dtype=np.int64),
            server_of=rows.server,
            first_user=rows.first,
            rounds=np.zeros(problem.servers, dtype=np.int64),
            ridge=float(constants.ridge),
            exploration=float(constants.exploration),
            deletion=float(constants.deletion),
            frequency=float(self._parameters["frequency"]),  # type: ignore[arg-type]
        )

    @property
    def labels_(self) -> Indices:
        return number_by_first(self._state.cluster_of[self._rows.row_of])

    @property
    def theta_(self) -> Floats:
        return self._state.clusters.theta[self._state.cluster_of[self._rows.row_of]]
