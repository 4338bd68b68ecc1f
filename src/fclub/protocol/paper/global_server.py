"""The global server: merges clusters of different servers and passes statistics between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.clustering import merge, number_by_first
from fclub.core.compiling import DirectCall
from fclub.core.kernels import log_determinant
from fclub.core.models import estimate_all
from fclub.core.packing import flatten, rebuild
from fclub.core.paper.federation import GlobalClusters, download_due, receive_upload, take_download
from fclub.core.paper.ucb import Rules, events_limit
from fclub.core.statistics import Statistics, pack_statistics, unpack_statistics
from fclub.core.types import Floats, Indices
from fclub.errors import InvalidMessage
from fclub.protocol.link import Downlink
from fclub.protocol.messages import (
    Message,
    PhaseStart,
    read_id,
    read_statistics,
    write_id,
    write_statistics,
)
from fclub.protocol.paper.messages import (
    ClusterPlan,
    Download,
    Plan,
    Report,
    Upload,
    check_report,
    check_upload,
)
from fclub.protocol.seam import Beginning, GlobalOverview, Member, State, global_overview

Reported = list[tuple[int, Statistics]]
"""All clusters of a server by number."""


class PhaseClock:
    """Counts observations; phase s starts before round 2^s − 1, once 2^s − 2 of them are complete.

    In simulation the count is the number of rounds; a live global server feeds it the reported total.
    """

    def __init__(self, phase: int = 0) -> None:
        self.phase = phase

    @property
    def next_start(self) -> int:
        """The number of completed observations at which the next phase starts."""
        return (1 << (self.phase + 1)) - 2

    def advance(self, observations: int) -> bool:
        """Whether a new phase starts now. A count that jumps over several starts only the last."""
        if observations < self.next_start:
            return False
        while observations >= self.next_start:
            self.phase += 1
        return True

    def state(self) -> list[int]:
        return [self.phase]

    def restore(self, state: list[int]) -> None:
        (self.phase,) = state


class PaperGlobal:
    """Knows local clusters only by server, opaque id and released statistics.

    In the printed algorithm Eq. 6 is looked at after every upload. If it `gathers`, as a live one does,
    that waits until all uploads that have arrived together are added.
    """

    def __init__(self, dim: int, servers: list[int], rules: Rules, merging: float, link: Downlink):
        self.dim = dim
        self.servers = sorted(servers)
        self.rules = rules
        self.merging = merging
        self.link = link
        self.clock = PhaseClock()
        self.phase = 0
        self.waiting: set[int] | None = None
        self.reports: dict[int, Reported] = {}
        self.heard: dict[int, int] = {}
        self.members: list[Member] = []
        self.released: list[Statistics] = []
        self.clusters = GlobalClusters.zeros(np.zeros(0, dtype=np.int64), dim)
        self.gathers = False
        self._uploaded: set[int] = set()
        self._receive_upload, self._download_due = DirectCall(receive_upload), DirectCall(download_due)

    @property
    def reported(self) -> int:
        """How many observations the global statistics hold."""
        return int(self.clusters.counts.sum())

    @property
    def next_phase(self) -> int:
        """The reported total at which the next phase starts."""
        return self.clock.next_start

    @property
    def missing(self) -> set[int]:
        return self.waiting or set()

    def limit(self, clusters: int) -> float:
        return events_limit(self.rules, self.dim, self.reported, clusters, self.phase)

    def released_by(self, server: int) -> int:
        """How many observations of a server the global statistics hold."""
        rows = zip(self.members, self.released, strict=True)
        return sum(st.count for (owner, _), st in rows if owner == server)

    def paid_by(self, server: int) -> float:
        """Every phase releases all data again."""
        return float(self.phase if self.released_by(server) else 0)

    def overview(self) -> list[GlobalOverview]:
        return global_overview(self.members, self.clusters.group, self.clusters.counts)

    def invite(self, servers: int) -> None:
        """Live: let servers 0, 1, … take part; start the first phase, or ask the new ones to join."""
        new = range(len(self.servers), servers)
        self.servers = list(range(servers))
        if self.phase == 0:
            self.advance()
            return
        for server in new:
            self.ask(server)

    def advance(self, overdue: bool = False) -> None:
        """Live: start the next phase once the reported total calls for it and the last one is over."""
        self._send_due()
        if overdue and self.waiting is not None:
            self.close_phase()
        if self.waiting is None and self.clock.advance(self.reported):
            self.begin_phase(self.clock.phase)

    def begin_phase(self, phase: int) -> None:
        """Ask every local server for a report; the last one to answer closes the phase."""
        self.phase = phase
        self.waiting = set(self.servers)
        for server in self.servers:
            self.ask(server)

    def ask(self, server: int) -> None:
        """Ask one server for its report in the current phase."""
        self.link.to_local(server, PhaseStart(self.phase))

    def begin(self, server: int, beginning: Beginning) -> None:
        """Forget the server's part and start a phase; a server that has reported nothing is just asked.

        The phase is one that neither side has heard of, since each has its own price.
        """
        self._send_due()
        known = self.reports.pop(server, None) is not None or any(m[0] == server for m in self.members)
        if not known and beginning.used < self.phase:
            self.ask(server)
            return
        rest = [row for row, member in enumerate(self.members) if member[0] != server]
        group = number_by_first(self.clusters.group[rest])
        released = [self.released[row] for row in rest]
        self._renew([self.members[row] for row in rest], released, group, set())
        self.reports = {}
        self.clock = PhaseClock(max(self.phase, beginning.used) + 1)
        self.begin_phase(self.clock.phase)

    def used_by(self, server: int) -> int:
        return self.heard.get(server, 0)

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Upload():
                self._upload(server, message)
            case Report():
                self._report(server, message)
            case _:
                raise InvalidMessage(f"the global server does not take a {type(message).__name__}")

    def _report(self, server: int, message: Report) -> None:
        """A report of the present phase counts when all are there, or at once if the phase is closed.

        A report of an earlier phase says nothing any more.
        """
        clusters = [
            (read_id(entry.cluster), read_statistics(entry.statistics, self.dim))
            for entry in message.clusters
        ]
        check_report(message.phase, self.phase, clusters, self.rules)
        self._send_due()
        self.heard[server] = message.phase
        if message.phase < self.phase:
            return
        self.reports[server] = clusters
        if self.waiting is None:
            self._join(server)
            return
        self.waiting.discard(server)
        if not self.waiting:
            self.close_phase()

    def _upload(self, server: int, message: Upload) -> None:
        """Alg. 3, lines 3–7."""
        statistics = read_statistics(message.statistics, self.dim)
        member = self._member(server, read_id(message.cluster))
        k = self.clusters.group[member]
        check_upload(statistics, self.clusters.gram[k], self.rules)
        self.released[member] += statistics
        parts = statistics.gram, statistics.moment, statistics.count
        self._receive_upload(self.clusters, member, *parts, self.rules)
        self._uploaded.add(int(k))
        if not self.gathers:
            self._send_due()

    def _send_due(self) -> None:
        """Alg. 4 for the members of global clusters with an upload since the last time."""
        changed, self._uploaded = sorted(self._uploaded), set()
        for k in changed:
            for other in self.clusters.members[self.clusters.starts[k] : self.clusters.starts[k + 1]]:
                if self._download_due(self.clusters, other, self.rules):
                    self._send_download(int(other))

    def _member(self, server: int, cluster: int) -> int:
        try:
            return self.members.index((server, cluster))
        except ValueError:
            raise InvalidMessage(f"server {server} has no cluster {cluster}") from None

    def _send_download(self, member: int) -> None:
        gram, moment = np.empty((self.dim, self.dim)), np.empty(self.dim)
        count = take_download(self.clusters, member, gram, moment)
        server, cluster = self.members[member]
        statistics = write_statistics(Statistics(gram, moment, int(count)))
        self.link.to_local(server, Download(write_id(cluster), statistics))

    def close_phase(self) -> None:
        """Alg. 2, lines 7–16: merge; if the partition has changed, all servers start anew from it.

        A server that has not answered takes part with what it has released so far.
        """
        self.waiting = None
        present, self.reports = self.reports, {}
        members, released = _latest_members(self.members, self.released, present)
        group = _merge_members(members, released, self.merging)
        renew = _partition(members, group) != _partition(self.members, self.clusters.group)
        if renew:
            self._renew(members, released, group, set(present))
        for server in sorted(present):
            self.link.to_local(server, self._plan(server, renew))

    def _join(self, server: int) -> None:
        """A late report: each new cluster goes to a group that it would merge with, or stays alone.

        The others keep their groups and get the difference as a download.
        """
        present, self.reports = self.reports, {}
        members, released = _latest_members(self.members, self.released, present)
        close = _merge_members(members, released, self.merging)
        old = {m: int(k) for m, k in zip(self.members, self.clusters.group, strict=True)}
        group = [old.get(m, -1) for m in members]
        fresh = len(self.clusters.counts)
        for row in range(len(members)):
            if group[row] < 0:
                near = [group[i] for i in np.flatnonzero(close == close[row]) if group[i] >= 0]
                group[row], fresh = (near[0], fresh) if near else (fresh, fresh + 1)
        self._renew(members, released, number_by_first(np.array(group)), {server})
        self.link.to_local(server, self._plan(server, renew=True))

    def _renew(
        self, members: list[Member], released: list[Statistics], group: Indices, planned: set[int]
    ) -> None:
        """(S^g, u^g, T^g) = the sum over a global cluster; planned servers start from it.

        What the others hold stays S^g minus their pending download: the difference becomes pending.
        """
        state = GlobalClusters.zeros(group, self.dim)
        for k, statistics in zip(group, released, strict=True):
            state.gram[k] += statistics.gram
            state.moment[k] += statistics.moment
            state.counts[k] += statistics.count
        for k in range(len(state.counts)):
            state.logdet[k] = log_determinant(state.gram[k])
        state.member_logdet[:] = state.logdet[group]
        old = {member: row for row, member in enumerate(self.members)}
        for row, member in enumerate(members):
            if member[0] not in planned:
                self._correct(state, row, old[member])
        self.members, self.released, self.clusters = members, released, state

    def _correct(self, state: GlobalClusters, row: int, old_row: int) -> None:
        old, k, old_k = self.clusters, state.group[row], self.clusters.group[old_row]
        held = old.gram[old_k] - old.pending_gram[old_row]
        state.pending_gram[row] = state.gram[k] - held
        state.pending_moment[row] = state.moment[k] - old.moment[old_k] + old.pending_moment[old_row]
        state.pending_count[row] = state.counts[k] - old.counts[old_k] + old.pending_count[old_row]
        state.member_logdet[row] = log_determinant(held)

    def _plan(self, server: int, renew: bool) -> Plan:
        entries = []
        for row, (owner, cluster) in enumerate(self.members):
            if renew and owner == server:
                k = int(self.clusters.group[row])
                statistics = Statistics(
                    self.clusters.gram[k], self.clusters.moment[k], int(self.clusters.counts[k])
                )
                sharing = int(self.clusters.starts[k + 1] - self.clusters.starts[k])
                entries.append(ClusterPlan(write_id(cluster), write_statistics(statistics), sharing, k))
        return Plan(self.phase, renew, tuple(entries))

    def state(self) -> State:
        arrays = flatten(self.clusters, "world.")
        arrays |= pack_statistics(self.released, self.dim, "released.")
        values: dict[str, Any] = {"phase": self.phase, "members": self.members, "reports": {}}
        values["heard"] = list(self.heard.items())
        values["waiting"] = None if self.waiting is None else sorted(self.waiting)
        for server, clusters in self.reports.items():
            values["reports"][str(server)] = [cluster for cluster, _ in clusters]
            arrays |= pack_statistics([st for _, st in clusters], self.dim, f"report{server}.")
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.clusters = rebuild(self.clusters, arrays, "world.")
        self.members = [(int(owner), int(cluster)) for owner, cluster in values["members"]]
        self.released = unpack_statistics(arrays, "released.")
        self.phase = int(values["phase"])
        self.clock = PhaseClock(self.phase)
        self.heard = dict(values["heard"])
        self.waiting = None if values["waiting"] is None else set(values["waiting"])
        self.reports = {
            int(server): list(zip(ids, unpack_statistics(arrays, f"report{server}."), strict=True))
            for server, ids in values["reports"].items()
        }


def _latest_members(
    members: list[Member], released: list[Statistics], present: dict[int, Reported]
) -> tuple[list[Member], list[Statistics]]:
    """Members by server, with their report where there is one, else with their releases."""
    rows = [(m, st) for m, st in zip(members, released, strict=True) if m[0] not in present]
    for server, clusters in present.items():
        rows += [((server, cluster), statistics) for cluster, statistics in clusters]
    rows.sort(key=lambda row: row[0][0])
    return [member for member, _ in rows], [statistics for _, statistics in rows]


def _merge_members(members: list[Member], released: list[Statistics], factor: float) -> Indices:
    """The group of each member: those of different servers with like estimates are together."""
    if not members:
        return np.zeros(0, dtype=np.int64)
    moment = np.array([statistics.moment for statistics in released])
    theta: Floats = np.empty_like(moment)
    estimate_all(np.array([statistics.gram for statistics in released]), moment, 0.0, theta)
    count = np.array([statistics.count for statistics in released], dtype=np.int64)
    server = np.array([server for server, _ in members], dtype=np.int64)
    return merge(theta, count, server, factor)


def _partition(members: list[Member], group: Indices) -> frozenset[frozenset[Member]]:
    """Who is together with whom, whatever the groups are called."""
    parts: dict[int, set[Member]] = {}
    for member, k in zip(members, group, strict=True):
        parts.setdefault(int(k), set()).add(member)
    return frozenset(frozenset(part) for part in parts.values())
