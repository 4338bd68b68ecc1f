"""The global server: merges clusters of different servers and passes statistics between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.clustering import merge
from fclub.core.federation import (
    GlobalClusters,
    download_due,
    receive_upload,
    take_download,
)
from fclub.core.kernels import log_determinant
from fclub.core.models import estimate_all
from fclub.core.packing import flatten, rebuild
from fclub.core.statistics import Statistics
from fclub.core.types import Floats, Indices
from fclub.core.ucb import Rules
from fclub.errors import InvalidMessage
from fclub.protocol.link import Link
from fclub.protocol.messages import (
    ClusterPlan,
    Download,
    Message,
    PhaseStart,
    Plan,
    Report,
    Upload,
    read_id,
    read_statistics,
    write_id,
    write_statistics,
)

Member = tuple[int, int]
"""A local cluster as the global server knows it: (server, opaque id)."""


class GlobalServer:
    """Knows local clusters only by server, opaque id and released statistics."""

    def __init__(self, dim: int, servers: list[int], rules: Rules, merging: float, link: Link):
        self.dim = dim
        self.servers = sorted(servers)
        self.rules = rules
        self.merging = merging
        self.link = link
        self.phase = 0
        self.reports: dict[int, list[tuple[int, Statistics]]] = {}
        self.members: list[Member] = []
        self.state = GlobalClusters.zeros(np.zeros(0, dtype=np.int64), dim)

    def begin_phase(self, phase: int) -> None:
        """Ask every local server for a report, then merge what arrived."""
        self.phase = phase
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        self.close_phase()

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Upload():
                self._upload(server, message)
            case Report():
                self.reports[server] = [
                    (read_id(entry.cluster), read_statistics(entry.statistics, self.dim))
                    for entry in message.clusters
                ]
            case _:
                raise InvalidMessage(f"the global server does not take a {type(message).__name__}")

    def _upload(self, server: int, message: Upload) -> None:
        """Alg. 3, lines 3–7, then Alg. 4 for the members of that global cluster."""
        statistics = read_statistics(message.statistics, self.dim)
        member = self._member(server, read_id(message.cluster))
        receive_upload(self.state, member, statistics.gram, statistics.moment, statistics.count)
        k = self.state.group[member]
        for other in self.state.members[self.state.starts[k] : self.state.starts[k + 1]]:
            if download_due(self.state, other, self.rules):
                self._send_download(int(other))

    def _member(self, server: int, cluster: int) -> int:
        try:
            return self.members.index((server, cluster))
        except ValueError:
            raise InvalidMessage(f"server {server} has no cluster {cluster}") from None

    def _send_download(self, member: int) -> None:
        gram, moment = np.empty((self.dim, self.dim)), np.empty(self.dim)
        count = take_download(self.state, member, gram, moment)
        server, cluster = self.members[member]
        statistics = write_statistics(Statistics(gram, moment, int(count)))
        self.link.to_local(server, Download(write_id(cluster), statistics))

    def close_phase(self) -> None:
        """Alg. 2, lines 7–16: merge; where the partition changed, everything starts afresh."""
        members = [(s, cluster) for s in self.servers for cluster, _ in self.reports.get(s, [])]
        reported = [st for s in self.servers for _, st in self.reports.get(s, [])]
        group = self._merge(members, reported)
        renew = self._partition(members, group) != self._partition(self.members, self.state.group)
        if renew:
            self._renew(members, reported, group)
        for server in self.servers:
            self.link.to_local(server, self._plan(server, renew))

    def _merge(self, members: list[Member], reported: list[Statistics]) -> Indices:
        moment = np.array([st.moment for st in reported])
        theta: Floats = np.empty_like(moment)
        estimate_all(np.array([st.gram for st in reported]), moment, 0.0, theta)
        count = np.array([st.count for st in reported], dtype=np.int64)
        server = np.array([server for server, _ in members], dtype=np.int64)
        return merge(theta, count, server, self.merging)

    @staticmethod
    def _partition(members: list[Member], group: Indices) -> frozenset[frozenset[Member]]:
        parts: dict[int, set[Member]] = {}
        for member, k in zip(members, group, strict=True):
            parts.setdefault(int(k), set()).add(member)
        return frozenset(frozenset(part) for part in parts.values())

    def _renew(self, members: list[Member], reported: list[Statistics], group: Indices) -> None:
        """(S^g, u^g, T^g) = the sum of the reports of a global cluster."""
        state = GlobalClusters.zeros(group, self.dim)
        for k, statistics in zip(group, reported, strict=True):
            state.gram[k] += statistics.gram
            state.moment[k] += statistics.moment
            state.counts[k] += statistics.count
        for k in range(len(state.counts)):
            state.logdet[k] = log_determinant(state.gram[k])
        state.member_logdet[:] = state.logdet[group]
        self.members, self.state = members, state

    def _plan(self, server: int, renew: bool) -> Plan:
        entries = []
        for row, (owner, cluster) in enumerate(self.members):
            if renew and owner == server:
                k = int(self.state.group[row])
                statistics = Statistics(
                    self.state.gram[k], self.state.moment[k], int(self.state.counts[k])
                )
                sharing = int(self.state.starts[k + 1] - self.state.starts[k])
                entries.append(ClusterPlan(write_id(cluster), write_statistics(statistics), sharing, k))
        return Plan(self.phase, renew, tuple(entries))

    def state_of(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and JSON-ready values from which `restore` continues."""
        return flatten(self.state, "world."), {"phase": self.phase, "members": self.members}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.state = rebuild(self.state, arrays, "world.")
        self.members = [(int(server), int(cluster)) for server, cluster in values["members"]]
        self.phase = int(values["phase"])
