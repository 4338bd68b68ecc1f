"""What the pages show of a node.

A local server shows speed, reward, clusters, whose data is in an estimate, privacy; the global server
phase, servers, clusters, communication; both what releases cost against the claimed budget.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from math import sqrt
from typing import Any

from fclub.privacy.calibration import STRICT_DELTA, epsilon_of, mu_of
from fclub.protocol.seam import Family
from fclub.service.dashboard.recorder import Change, Partition, Sample, compare
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
        self._ids = list(node.server.ids)

    def changes(self) -> list[Change]:
        """What happened to the clusters since the last call."""
        name, old = self.node.name, self._ids
        self._ids = list(self.node.server.ids)
        before = {(name, cluster): k for k, cluster in enumerate(old)}
        return compare(before, {(name, cluster): k for k, cluster in enumerate(self._ids)})

    def sample(self) -> Sample:
        node, traffic = self.node, self.monitor.traffic
        route = traffic.route("/v1/recommend")
        return {
            "users": len(node.rows),
            "observations": node.feedbacks,
            "clusters": len(node.server.overview()),
            "decisions": traffic.decisions,
            "feedback": traffic.feedback,
            "reward": traffic.rewards,
            "requests": route.requests,
            "request_seconds": route.seconds,
            "lag": node.channel.sent - node.channel.confirmed,
        }

    def state(self) -> dict[str, Any]:
        node = self.node
        return {
            "name": node.name,
            "policy": self.model.policy,
            "unanswered": node.server.unanswered,
            "trouble": node.handshake.standing.reason,
            "begun": node.begun["reason"] if node.begun and node.begun["session"] > 1 else None,
            "latency": self.monitor.traffic.route("/v1/recommend").at_most(),
            "clusters": [asdict(one) for one in node.overview()],
            "privacy": self._privacy(),
            "failed": self.monitor.traffic.failed(),
        }

    def _privacy(self) -> dict[str, Any] | None:
        """What all streams together have cost, and those of the open ones that hold most data."""
        ledger, open_now = self.node.books.ledger, self.node.server.streams()
        if ledger is None:
            return None
        largest = sorted(open_now.items(), key=lambda entry: -entry[1].observations)[:SHOWN_STREAMS]
        return {
            "claimed": list(ledger.claimed),
            "server": cost(ledger.mu, *ledger.claimed, ledger.distance),
            "phases": len({stream.epoch for stream in ledger.streams.values()}),
            "exhausted": ledger.exhausted,
            "open": len(open_now),
            "streams": [
                {
                    "stream": name.rpartition("/")[2],
                    "releases": one.sequence,
                    "observations": one.observations,
                    **cost(one.mu, *ledger.claimed, one.distance),
                }
                for name, one in largest
            ],
        }


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
                "missing": [node.names[number] for number in missing] or None,
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
            "trouble": self.node.troubles().get(name),
        }


class Spending:
    """What local servers can have spent at most, as far as the global server can tell."""

    def __init__(self, family: Family) -> None:
        self.privacy, self.price = family.privacy, family.price()

    def state(self, phases: int) -> dict[str, Any] | None:
        """The cost after this number of phases; None where exact statistics leave."""
        if self.privacy is None or self.price is None:
            return None
        claimed, again = (self.privacy.epsilon, self.privacy.delta), self.price.phases_add_up
        times = phases if again else min(phases, 1)
        return {
            "claimed": list(claimed),
            "phases": phases if again else None,
            "stream": cost(self.price.stream, *claimed, self.price.distance),
            "server": cost(self.price.stream * sqrt(times), *claimed, self.price.distance * times),
        }


@lru_cache(maxsize=1024)
def cost(mu: float, epsilon: float, delta: float, distance: float) -> dict[str, float]:
    """ε at the claimed δ and at 10⁻⁵, and the share of the budget: costs add up by their squares."""
    return {
        "epsilon": epsilon_of(mu, delta, distance),
        "strict": epsilon_of(mu, STRICT_DELTA, distance),
        "share": (mu / mu_of(epsilon, delta)) ** 2,
    }
