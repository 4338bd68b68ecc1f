"""What the global server shows: phase, servers, clusters, communication."""

from __future__ import annotations

from typing import Any

from fclub.service.dashboard.history import Sample
from fclub.service.dashboard.partition import Change, Partition, compare
from fclub.service.dashboard.spending import Spending
from fclub.service.nodes.global_node import GlobalNode, Peer
from fclub.service.settings import Model


class GlobalView:
    """Reads a global node; keeps only the last partition and the largest number of clusters."""

    page = "global"

    def __init__(self, node: GlobalNode, model: Model) -> None:
        self.node, self.model = node, model
        self.spending = Spending(node.family)
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
        """Uploads and downloads are limited by some families, what is exchanged in phases by none."""
        events = self.node.server.limit(self._most)
        return {} if events is None else {"limit": events + exchanged}

    def state(self) -> dict[str, Any]:
        node, server = self.node, self.node.server
        missing, groups = sorted(server.missing), server.overview()
        return {
            "name": "global",
            "policy": self.model.policy,
            "phase": {
                "number": server.phase,
                "reported": server.reported,
                "next": server.next_phase,
                "waiting": [node.names[number] for number in missing] or None,
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
