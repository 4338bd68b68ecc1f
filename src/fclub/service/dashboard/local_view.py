"""What a local server shows: speed, reward, clusters, whose data is in an estimate, privacy."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fclub.service.dashboard.history import Sample
from fclub.service.dashboard.partition import Change, compare
from fclub.service.dashboard.spending import cost
from fclub.service.monitoring import Monitor
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
            "waiting": node.server.unanswered,
            "latency": self.monitor.traffic.route("/v1/recommend").at_most(),
            "clusters": [asdict(one) for one in node.server.overview()],
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
            "server": cost(ledger.mu, *ledger.claimed),
            "phases": len({stream.epoch for stream in ledger.streams.values()}),
            "exhausted": ledger.exhausted,
            "open": len(open_now),
            "streams": [
                {
                    "stream": name.rpartition("/")[2],
                    "releases": one.sequence,
                    "observations": one.observations,
                    **cost(one.mu, *ledger.claimed),
                }
                for name, one in largest
            ],
        }
