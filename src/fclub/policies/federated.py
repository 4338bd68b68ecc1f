"""Policies with servers that talk to each other: a federation of any family in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Parameter, Problem
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.policies.base import Policy
from fclub.policies.rows import Rows
from fclub.privacy.ledger import Ledger
from fclub.protocol.federation import Federation
from fclub.protocol.link import Communications, InProcessLink
from fclub.protocol.seam import (
    Clock,
    Compiled,
    Family,
    GlobalServer,
    Kernels,
    LocalServer,
    Preset,
    Shape,
    State,
)

UNHEARD = 1_000_000
"""Clusters that only their own server has heard of are labelled from here on, by server."""


class FederatedPolicy(Policy):
    """Local servers, a global server and an in-process link between them."""

    rows: Rows
    family: Family
    federation: Federation
    _compiled: Compiled | None

    def __init__(self, name: str, preset: Preset, **parameters: Parameter) -> None:
        self.preset = preset
        super().__init__(name, **parameters)
        self._constants = preset.check(self._parameters)

    def _defaults(self) -> Mapping[str, Parameter]:
        return self.preset.defaults

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool) -> None:
        self.rows = Rows.by_server(server_of, problem.servers)
        self.family = self._constants.family(Shape(problem.dim, problem.users, problem.constant))
        self.federation = Federation(self.family, self.rows.row_of, self.rows.first, seed, seeded)
        self._compiled = self.family.compiled(self.federation)

    @property
    def servers(self) -> dict[int, LocalServer]:
        """The local servers that have users, by number."""
        return self.federation.servers

    @property
    def hub(self) -> GlobalServer:
        return self.federation.hub

    @property
    def clock(self) -> Clock:
        return self.federation.clock

    @property
    def link(self) -> InProcessLink:
        return self.federation.link

    @property
    def ledger(self) -> Ledger | None:
        return self.federation.ledger

    def _locate(self, user: int) -> tuple[LocalServer, int]:
        """The server of a user, and the user's row there."""
        row = int(self.rows.row_of[user])
        server = int(self.rows.server[row])
        return self.servers[server], row - int(self.rows.first[server])

    def _recommend(self, user: int, items: Matrix) -> int:
        server, row = self._locate(user)
        return server.recommend(row, items)

    def _update(self, user: int, x: Vector, y: float) -> None:
        self.family.domain.check_items(x.reshape(1, -1))
        server, row = self._locate(user)
        server.observe(row, x, y)

    def after_round(self) -> None:
        self.federation.advance(self.observations)

    @property
    def next_stop(self) -> int:
        return self.clock.next_start

    @property
    def communications(self) -> Communications:
        return self.link.communications

    def privacy_report(self) -> dict[str, object] | None:
        return self.ledger.summary() if self.ledger is not None else None

    @property
    def labels_(self) -> Indices:
        """Global clusters; a cluster that the global server does not know gets a label of its own."""
        labels = []
        for number, server in self.servers.items():
            own = server.group_of
            labels.append(np.where(own >= 0, own, UNHEARD * (number + 1) - own))
        return np.concatenate(labels)[self.rows.row_of]

    @property
    def theta_(self) -> Floats:
        estimates: Floats = np.concatenate([server.theta for server in self.servers.values()])
        return estimates[self.rows.row_of]

    @property
    def kernels(self) -> Kernels | None:
        return None if self._compiled is None else self._compiled.kernels

    def pack(self) -> Any | None:
        return None if self._compiled is None else self._compiled.pack()

    def count_events(self, state: Any) -> None:
        assert self._compiled is not None
        self._compiled.count_events(state)

    def unpack(self, state: Any) -> None:
        assert self._compiled is not None
        self._compiled.unpack(state)

    def state(self) -> State:
        return self.federation.state()

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.federation.restore(arrays, values)
