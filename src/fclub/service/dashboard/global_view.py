"""What the global server shows: phase, servers, clusters, communication."""

from __future__ import annotations

from typing import Any

from fclub.protocol.mixture_global import MixtureGlobal
from fclub.service.dashboard.history import Sample
from fclub.service.dashboard.limits import communication_limit
from fclub.service.dashboard.partition import Change, Partition, compare
from fclub.service.dashboard.spending import Spending
from fclub.service.global_node import GlobalNode, Peer
from fclub.service.settings import Model


class GlobalView:
    """Reads a global node; keeps only the last partition and the largest number of clusters."""

    page = "global"

    def __init__(self, node: GlobalNode, model: Model) -> None:
        self.node, self.model = node, model
        self.spending = Spending(model)
        self._partition = self.partition()
        self._most = len(self._partition)

    def partition(self) -> Partition:
        names = self.node.names
        return {
            (names[owner], cluster): k
            for k, group in enumerate(self.node.server.overview())
            for owner, cluster in group.members
        }

    def changes(self) -> list[Change]:
        """What happened to the clusters since the last call."""
        old, self._partition = self._partition, self.partition()
        self._most = max(self._most, len(self._partition))
        return compare(old, self._partition)

    def sample(self) -> Sample:
        node, server = self.node, self.node.server
        sent, groups = node.communications, server.overview()
        return {
            "reported": server.reported,
            "phase": server.phase,
            "local_clusters": sum(len(group.members) for group in groups),
            "clusters": len(groups),
            "uploads": sent.uploads,
            "downloads": sent.downloads,
            "total": sent.total,
            "bytes": sent.bytes,
        } | self._limit(sent.phases)

    def _limit(self, exchanged: int) -> Sample:
        """Only the paper's policies have a trigger that limits what is exchanged between phases."""
        server = self.node.server
        if isinstance(server, MixtureGlobal):
            return {}
        events = communication_limit(
            server.rules, server.dim, server.reported, self._most, server.phase
        )
        return {"limit": events + exchanged}

    def state(self) -> dict[str, Any]:
        node, server = self.node, self.node.server
        waiting, groups = server.waiting, server.overview()
        return {
            "name": "global",
            "policy": self.model.policy,
            "phase": {
                "number": server.phase,
                "reported": server.reported,
                "next": server.next_phase,
                "waiting": None if waiting is None else [node.names[n] for n in sorted(waiting)],
            },
            "servers": [self._server(name, peer) for name, peer in node.peers.items()],
            "map": {
                "members": [[*member, k] for k, group in enumerate(groups) for member in group.members],
                "observations": [group.observations for group in groups],
            },
            "privacy": self.spending.state(server.phase),
        }

    def _server(self, name: str, peer: Peer) -> dict[str, Any]:
        sent = peer.communications
        return {
            "name": name,
            "seen": peer.seen,
            "lag": peer.channel.sent - peer.channel.confirmed,
            "uploads": sent.uploads,
            "downloads": sent.downloads,
            "phases": sent.phases,
            "bytes": sent.bytes,
            "offences": peer.offences,
            "quarantined": peer.quarantined,
        }
