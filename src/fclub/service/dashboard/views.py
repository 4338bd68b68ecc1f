"""What the pages show of a node.

Both pages answer the same four questions: does it learn, who learns with whom and how sure is that,
what has left and what did it cost, is everything well.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from math import ceil, sqrt
from typing import Any

from fclub.privacy.calibration import STRICT_DELTA, epsilon_of, mu_of
from fclub.privacy.levels import USER
from fclub.protocol.interfaces.overview import CLUSTER
from fclub.service.dashboard.recorder import ClusterChange, Partition, Sample, compare
from fclub.service.dashboard.words import effects_told, global_notes, local_notes, next_sending, promise
from fclub.service.monitoring import Monitor
from fclub.service.nodes.global_node import GlobalNode, Peer
from fclub.service.nodes.local_node import LocalNode
from fclub.service.settings import Model

SHOWN_STREAMS = 50


class LocalView:
    """Reads a local node and the counters of its process."""

    page = "local"

    def __init__(self, node: LocalNode, model: Model, monitor: Monitor) -> None:
        self.node, self.model, self.monitor = node, model, monitor
        self._ids = self._told()

    def changes(self) -> list[ClusterChange]:
        """What happened to the clusters since the last call."""
        name, old = self.node.name, self._ids
        self._ids = self._told()
        before = {(name, cluster): k for k, cluster in enumerate(old)}
        return compare(before, {(name, cluster): k for k, cluster in enumerate(self._ids)})

    def _told(self) -> list[int]:
        """The ids of clusters that others know of."""
        return [one.cluster for one in self.node.server.overview() if one.cluster is not None]

    def sample(self) -> Sample:
        node, traffic = self.node, self.monitor.traffic
        route = traffic.route("/v1/recommend")
        return {
            "users": len(node.users.rows),
            "observations": node.feedbacks,
            "clusters": len(node.server.overview()),
            "decisions": traffic.decisions,
            "feedback": traffic.feedback,
            "reward": traffic.rewards,
            "squares": traffic.squares,
            "requests": route.requests,
            "lag": node.sessions.channel.sent - node.sessions.channel.confirmed,
        }

    def state(self) -> dict[str, Any]:
        node, failed = self.node, self.monitor.traffic.failed()
        begun, status = node.sessions.begun, node.server.status()
        return {
            "name": node.name,
            "policy": self.model.policy,
            "notes": local_notes(node, failed),
            "next": next_sending(status.outlook),
            "begun": begun["reason"] if begun and begun["session"] > 1 else None,
            "latency": self.monitor.traffic.route("/v1/recommend").at_most(),
            "clusters": [{"number": k} | asdict(one) for k, one in enumerate(node.overview())],
            "catalogue": {"items": len(node.catalogue), "told": effects_told(node)},
            "messages": node.books.sent,
            "waiting": status.waiting,
            "privacy": self._privacy(),
            "failed": failed,
        }

    def _privacy(self) -> dict[str, Any] | None:
        """What all streams together have cost, and those of the open ones that hold most data."""
        ledger, open_now = self.node.books.ledger, self.node.server.status().streams
        if ledger is None:
            return None
        largest = sorted(open_now.items(), key=lambda entry: -entry[1].observations)[:SHOWN_STREAMS]
        mu = ledger.mu_of_period if ledger.unit == USER else ledger.mu
        return promise(ledger) | {
            "server": cost(mu, *ledger.claimed, ledger.distance),
            "phases": len({stream.epoch for stream in ledger.streams.values()}),
            "exhausted": self.node.exhausted,
            "open": len(open_now),
            "streams": [
                {
                    "stream": name.rpartition("/")[2],
                    "releases": one.sequence,
                    "provision": one.mechanism.releases,
                    "observations": one.observations,
                    **cost(one.mu, *ledger.claimed, one.distance),
                }
                for name, one in largest
            ],
        }


class GlobalView:
    """Reads a global node; keeps only the last partition."""

    page = "global"

    def __init__(self, node: GlobalNode, model: Model) -> None:
        self.node, self.model = node, model
        self._partition = self.partition()

    def partition(self) -> Partition:
        """Of the clusters that servers find; types are all servers' from the start."""
        names = self.node.names
        return {
            (names[owner], cluster): group.number
            for group in self.node.server.overview()
            if group.kind == CLUSTER
            for owner, cluster in group.members
        }

    def changes(self) -> list[ClusterChange]:
        """What happened to the clusters since the last call."""
        old, self._partition = self._partition, self.partition()
        return compare(old, self._partition)

    def sample(self) -> Sample:
        node, server = self.node, self.node.server
        sent, groups = node.communications, server.overview()
        return {
            "reported": server.reported,
            "phase": server.phase,
            "clusters": len(groups),
            "uploads": sent.uploads,
            "downloads": sent.downloads,
            "total": sent.total,
            "messages": sent.messages,
            "bytes": sent.bytes,
        }

    def state(self) -> dict[str, Any]:
        node, server = self.node, self.node.server
        missing, groups = sorted(server.missing), server.overview()
        return {
            "name": "global",
            "policy": self.model.policy,
            "notes": global_notes(node),
            "phase": None
            if server.next_phase is None
            else {
                "number": server.phase,
                "reported": server.reported,
                "next": server.next_phase,
                "missing": [node.names[number] for number in missing] or None,
            },
            "servers": [self._server(name, peer) for name, peer in node.peers.items()],
            "groups": [
                {
                    "number": group.number,
                    "kind": group.kind,
                    "observations": group.observations,
                    "weight": group.weight,
                    "known": group.known,
                }
                for group in groups
            ],
            "members": [[*member, k] for k, group in enumerate(groups) for member in group.members],
            "privacy": self._privacy(),
        }

    def _privacy(self) -> dict[str, Any] | None:
        """What local servers have spent at most, as far as the global server can tell."""
        ledger, price = self.node.family.ledger(seeded=False, keep=False), self.node.family.price()
        if ledger is None or price is None:
            return None
        paid = {name: self.node.server.paid_by(peer.number) for name, peer in self.node.peers.items()}
        return promise(ledger) | {
            "servers": {
                name: cost(price.stream * sqrt(times), *ledger.claimed, price.distance * ceil(times))
                for name, times in paid.items()
            }
        }

    def _server(self, name: str, peer: Peer) -> dict[str, Any]:
        sent = peer.communications
        return {
            "name": name,
            "unheard": peer.unheard if peer.seen else None,
            "lag": peer.channel.sent - peer.channel.confirmed,
            "released": self.node.server.released_by(peer.number),
            "messages": sent.messages,
            "uploads": sent.uploads,
            "downloads": sent.downloads,
            "phases": sent.phases,
            "bytes": sent.bytes,
            "quarantined": peer.quarantined,
            "trouble": self.node.members.troubles().get(name),
        }


@lru_cache(maxsize=1024)
def cost(mu: float, epsilon: float, delta: float, distance: float) -> dict[str, float]:
    """ε at the claimed δ and at 10⁻⁵, and the share of the budget: costs add up by their squares."""
    return {
        "epsilon": epsilon_of(mu, delta, distance),
        "strict": epsilon_of(mu, STRICT_DELTA, distance),
        "share": (mu / mu_of(epsilon, delta)) ** 2,
    }
