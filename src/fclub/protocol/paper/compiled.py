"""A federation of the paper's policies inside compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.paper import rounds
from fclub.core.paper.federation import LocalClusters
from fclub.core.paper.rounds import FederatedRound
from fclub.core.paper.ucb import Rules
from fclub.errors import NumericalError
from fclub.protocol.federation import Federation
from fclub.protocol.paper.messages import event_size


class PaperRounds:
    """Packs the clusters of all servers together; the users' arrays are shared anyway."""

    kernels = (rounds.recommend, rounds.feedback)

    def __init__(self, federation: Federation, rules: Rules) -> None:
        self.federation, self.rules = federation, rules
        self._servers: list[Any] = list(federation.servers.values())
        self._hub: Any = federation.hub

    def pack(self) -> FederatedRound:
        starts = np.cumsum([0] + [len(server.ids) for server in self._servers])
        cluster_of = [s.cluster_of + start for s, start in zip(self._servers, starts, strict=False)]
        parts = zip(*(server.clusters for server in self._servers), strict=True)
        users: Any = self.federation.users
        return FederatedRound(
            users=users,
            local=LocalClusters(*(np.concatenate(part) for part in parts)),
            merged=self._hub.clusters,
            row_of=self.federation.row_of,
            cluster_of=np.concatenate(cluster_of),
            events=np.zeros(2, dtype=np.int64),
            noise=self.federation.rng,
            rules=self.rules,
        )

    def count_events(self, state: FederatedRound) -> None:
        uploads, downloads = int(state.events[0]), int(state.events[1])
        sizes = event_size(state.users.moment.shape[1])
        self.federation.link.communications.count_events(uploads, downloads, sizes)
        state.events[:] = 0

    def unpack(self, state: FederatedRound) -> None:
        if np.any(np.isnan(state.local.growth)):
            raise NumericalError("statistics of a cluster are indefinite")
        start = 0
        for server in self._servers:
            stop = start + len(server.ids)
            rows: Any = (array[start:stop].copy() for array in state.local)
            server.clusters = LocalClusters(*rows)
            server.enter_uploads()
            start = stop
