"""The global server of one model for all: adds up, and tells every server the sum of the others."""

from __future__ import annotations

from typing import Any

from fclub.core.statistics import Statistics, pack_statistics, unpack_statistics
from fclub.errors import InvalidMessage
from fclub.protocol.link import Downlink
from fclub.protocol.messages import Message, PhaseStart, read_id, write_statistics
from fclub.protocol.plus.messages import check_released, read_released
from fclub.protocol.pooled.messages import Others, Sums
from fclub.protocol.pooled.rules import PooledRules
from fclub.protocol.seam import Beginning, Gathering, GlobalOverview, State

Known = tuple[int, Statistics, float]
"""A server's id of its cluster, what it has released, and the variance of the noise in each entry."""


class PooledGlobal(Gathering):
    """Knows every server by the sum of all that it has released.

    What a server released in earlier sessions, of data that it does not release again, is `frozen`. It
    is `hidden` from a server that may still hold the same data.
    """

    def __init__(self, servers: list[int], rules: PooledRules, link: Downlink) -> None:
        self.servers, self.rules, self.link = sorted(servers), rules, link
        self.known: dict[int, Known] = {}
        self.frozen: dict[int, list[tuple[Statistics, float]]] = {}
        self.hidden: set[int] = set()
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

    def begin(self, server: int, beginning: Beginning) -> None:
        """Keep what an old or a lost store has released; what any other one releases it sends again."""
        known = self.known.pop(server, None)
        if known is not None and (beginning.local_old or beginning.local_new):
            self.frozen.setdefault(server, []).append(known[1:])
        if beginning.local_old:
            self.hidden.add(server)
        elif beginning.local_new:
            self.hidden.discard(server)
        self._tell(server)

    def used_by(self, server: int) -> int:
        return 0

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Sums() if server in self.servers:
                known = read_released(message.statistics, message.noise, self.rules.dim)
                check_released(known, self.rules)
                if known.statistics.count < self._released_now(server):
                    raise InvalidMessage(f"server {server} takes back what it has released")
                self.known[server] = (read_id(message.cluster), known.statistics, known.noise)
                self._news = True
            case _:
                kind = type(message).__name__
                raise InvalidMessage(f"the global server does not take a {kind} from server {server}")

    def _tell(self, server: int) -> None:
        others = [known[1:] for owner, known in sorted(self.known.items()) if owner != server]
        for owner, earlier in sorted(self.frozen.items()):
            if owner != server or owner not in self.hidden:
                others += earlier
        if others:
            total = sum((statistics for statistics, _ in others), Statistics.zeros(self.rules.dim))
            noise = float(sum(noise for _, noise in others))
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
        return sum(map(self.released_by, self.known.keys() | self.frozen.keys()))

    def released_by(self, server: int) -> int:
        earlier = sum(statistics.count for statistics, _ in self.frozen.get(server, []))
        return earlier + self._released_now(server)

    def _released_now(self, server: int) -> int:
        """In the present session."""
        return self.known[server][1].count if server in self.known else 0

    def limit(self, clusters: int) -> None:
        """Count schedules limit how often servers report, and nothing else does."""

    def paid_by(self, server: int) -> float:
        """A server is one stream."""
        return float(self.released_by(server) > 0)

    def overview(self) -> list[GlobalOverview]:
        members = [(server, cluster) for server, (cluster, _, _) in self.known.items()]
        return [GlobalOverview(self.reported, members)] if members else []

    def state(self) -> State:
        released = [statistics for _, statistics, _ in self.known.values()]
        members = [(server, cluster, noise) for server, (cluster, _, noise) in self.known.items()]
        values = {"phase": self.phase, "known": members, "news": self._news}
        earlier = [(server, *known) for server, all_ in self.frozen.items() for known in all_]
        values["frozen"] = [(server, noise) for server, _, noise in earlier]
        values["hidden"] = sorted(self.hidden)
        arrays = pack_statistics(released, self.rules.dim, "known.")
        frozen = [statistics for _, statistics, _ in earlier]
        return arrays | pack_statistics(frozen, self.rules.dim, "frozen."), values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        released = unpack_statistics(arrays, "known.")
        self.known = {
            server: (cluster, statistics, noise)
            for (server, cluster, noise), statistics in zip(values["known"], released, strict=True)
        }
        self.phase, self._news = int(values["phase"]), bool(values["news"])
        self.frozen, self.hidden = {}, set(values.get("hidden", []))
        if values.get("frozen"):
            earlier = unpack_statistics(arrays, "frozen.")
            for (server, noise), statistics in zip(values["frozen"], earlier, strict=True):
                self.frozen.setdefault(server, []).append((statistics, noise))
