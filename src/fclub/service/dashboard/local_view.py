"""What a local server shows: speed, reward, clusters, whose data is in an estimate, privacy."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from fclub.privacy.calibration import REPORTED_DELTA, epsilon_of
from fclub.privacy.mechanisms import Tree
from fclub.privacy.sensitivity import Domain, sensitivity
from fclub.service.dashboard.history import Sample
from fclub.service.dashboard.partition import Change, compare
from fclub.service.local_node import LocalNode
from fclub.service.monitoring import Monitor
from fclub.service.parts import policy_of
from fclub.service.settings import Model


class LocalView:
    """Reads a local node and the counters of its process."""

    page = "local"

    def __init__(self, node: LocalNode, model: Model, monitor: Monitor) -> None:
        self.node, self.model, self.monitor = node, model, monitor
        self.privacy = policy_of(model).privacy
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
            "clusters": len(node.server.clusters.counts),
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
            "waiting": node.server.staged is not None,
            "latency": self.monitor.traffic.route("/v1/recommend").at_most(),
            "clusters": self._clusters(),
            "privacy": self._privacy(),
            "failed": self.monitor.traffic.failed(),
        }

    def _clusters(self) -> list[dict[str, Any]]:
        """Own data of an estimate: what its users have observed, without what is not yet in it."""
        server = self.node.server
        clusters, rows = server.clusters, len(server.clusters.counts)
        users = np.bincount(server.cluster_of, minlength=rows)
        observed = np.bincount(server.cluster_of, weights=server.users.counts, minlength=rows)
        own = np.clip(observed - clusters.buffer_count, 0, clusters.counts)
        return [
            {
                "cluster": server.ids[c] if c < len(server.ids) else None,
                "group": server.groups[c] if c < len(server.groups) else None,
                "users": int(users[c]),
                "own": int(own[c]),
                "others": int(clusters.counts[c] - own[c]),
                "waiting": int(clusters.buffer_count[c]),
            }
            for c in range(rows)
        ]

    def _privacy(self) -> dict[str, Any] | None:
        """What the open streams have cost so far, and all phases together with whole trees charged.

        A local cluster is a stream. A phase releases all data again, so phases add up.
        """
        if self.privacy is None:
            return None
        server, delta = self.node.server, self.privacy.delta
        tree = Tree(server.rules.uploads + 1, server.rules.noise_std)
        unit = sensitivity(Domain()) / tree.std
        streams = [
            {
                "cluster": server.ids[c] if c < len(server.ids) else None,
                "releases": leaves,
                "epsilon": epsilon_of(unit * tree.charged(leaves), delta),
            }
            for c, leaves in enumerate(server.clusters.leaves.tolist())
        ]
        sql = "SELECT count(*) FROM ledger WHERE kind = 'report'"
        (phases,) = self.node.store.reader.execute(sql).fetchone()
        total = unit * tree.charged(tree.releases) * sqrt(phases)
        claimed = [self.privacy.epsilon, delta]
        return {
            "claimed": claimed,
            "streams": streams,
            "phases": phases,
            "epsilon": epsilon_of(total, delta),
            "reported": [epsilon_of(total, REPORTED_DELTA), REPORTED_DELTA],
        }
