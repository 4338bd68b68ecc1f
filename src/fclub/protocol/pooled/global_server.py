"""The global server of one model for all: adds up, and tells every server the sum of the others."""

from __future__ import annotations

from typing import Any

from fclub.core.statistics import Statistics, pack_statistics, unpack_statistics
from fclub.errors import InvalidMessage
from fclub.protocol.link import Downlink
from fclub.protocol.messages import Message, PhaseStart, read_id, write_statistics
from fclub.protocol.overview import GlobalOverview
from fclub.protocol.plus.messages import read_released
from fclub.protocol.plus.trust import check_released
from fclub.protocol.pooled.messages import Others, Sums
from fclub.protocol.pooled.rules import PooledRules
from fclub.protocol.seam import State

Known = tuple[int, Statistics, float]
"""A server's id of its cluster, what it has released, and the variance of the noise in each entry."""


class PooledGlobal:
    """Knows every server by the sum of all that it has released."""

    def __init__(self, servers: list[int], rules: PooledRules, link: Downlink) -> None:
        self.servers, self.rules, self.link = sorted(servers), rules, link
        self.known: dict[int, Known] = {}
        self.phase = 0
        self._news = False

    def begin_phase(self, phase: int) -> None:
        """Let every server release what is due; tell all if somebody did."""
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        self.advance()
        self.phase = phase

    def advance(self, overdue: bool = False) -> None:
        if self._news:
            self._news = False
            self.phase += 1
            for server in self.servers:
                self._tell(server)

    def invite(self, servers: int) -> None:
        self.servers = list(range(servers))

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Sums() if server in self.servers:
                known = read_released(message.statistics, message.noise, self.rules.dim)
                check_released(*known, self.rules)
                if known[0].count < self.released_by(server):
                    raise InvalidMessage(f"server {server} takes back what it has released")
                self.known[server] = (read_id(message.cluster), *known)
                self._news = True
            case _:
                kind = type(message).__name__
                raise InvalidMessage(f"the global server does not take a {kind} from server {server}")

    def _tell(self, server: int) -> None:
        others = [known for owner, known in sorted(self.known.items()) if owner != server]
        if others:
            total = sum((statistics for _, statistics, _ in others), Statistics.zeros(self.rules.dim))
            noise = float(sum(noise for _, _, noise in others))
            self.link.to_local(server, Others(write_statistics(total), noise, len(others)))

    @property
    def next_phase(self) -> None:
        """Live, local servers start their own."""

    @property
    def missing(self) -> set[int]:
        """Nothing: no server waits for another."""
        return set()

    @property
    def reported(self) -> int:
        return sum(map(self.released_by, self.known))

    def released_by(self, server: int) -> int:
        return self.known[server][1].count if server in self.known else 0

    def limit(self, clusters: int) -> None:
        """Count schedules limit how often servers report, and nothing else does."""

    def overview(self) -> list[GlobalOverview]:
        members = [(server, cluster) for server, (cluster, _, _) in self.known.items()]
        return [GlobalOverview(self.reported, members)] if members else []

    def state(self) -> State:
        released = [statistics for _, statistics, _ in self.known.values()]
        members = [(server, cluster, noise) for server, (cluster, _, noise) in self.known.items()]
        values = {"phase": self.phase, "known": members, "news": self._news}
        return pack_statistics(released, self.rules.dim, "known."), values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        released = unpack_statistics(arrays, "known.")
        self.known = {
            server: (cluster, statistics, noise)
            for (server, cluster, noise), statistics in zip(values["known"], released, strict=True)
        }
        self.phase, self._news = int(values["phase"]), bool(values["news"])
