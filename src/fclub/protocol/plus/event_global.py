"""The global server of streams: it tells every server what others have released of their users."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.statistics import pack_statistics, unpack_statistics
from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.released import Limits, ReleasedSums, check_released, read_released
from fclub.protocol.link import Downlink
from fclub.protocol.messages import (
    Message,
    PhaseStart,
    check_named,
    read_id,
    write_statistics,
)
from fclub.protocol.plus.messages import Digest, Share, Shares
from fclub.protocol.seam import Beginning, Gathering, GlobalOverview, Member, State, global_overview

FROZEN = 1 << 40
"""Streams of earlier sessions are numbered from here on: no server has so many of its own."""


class EventGlobal(Gathering):
    """Knows streams by server, opaque number and released statistics.

    A simulation starts phases for all servers together (`begin_phase`). Live, every server keeps its
    own clock and is answered when it has reported (`advance`), so no server waits for another.

    What a server released in earlier sessions, of data that it does not release again, stays known
    under numbers from `FROZEN` on. It is `hidden` from a server that may still hold the same data.
    """

    def __init__(self, servers: list[int], limits: Limits, link: Downlink) -> None:
        self.servers, self.limits, self.link = sorted(servers), limits, link
        self.known: dict[Member, ReleasedSums] = {}
        self.next_share, self.phase = 0, 0
        self.hidden: set[Member] = set()
        self._sent: dict[int, dict[tuple[int, int, int], int]] = {}
        self._heard: set[int] = set()

    @property
    def dim(self) -> int:
        return len(self.limits.prior)

    def begin_phase(self, phase: int) -> None:
        """Let every server release and report; answer if one of them had news."""
        self.phase = phase
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        if self._heard and self.known:
            self._answer(self.servers)
        self._heard.clear()

    def advance(self, overdue: bool = False) -> None:
        """Live: answer those who have reported."""
        if self._heard:
            self.phase += 1
            self._answer(sorted(self._heard))
            self._heard.clear()

    def invite(self, servers: int) -> None:
        """Live: servers 0, 1, … take part; they send the first message."""
        self.servers = list(range(servers))

    def begin(self, server: int, beginning: Beginning) -> None:
        """Keep what an old or a lost store has released; what any other one releases it sends again."""
        now = [self.known[m] for m in self.known if m[0] == server and m[1] < FROZEN]
        self.known = {m: known for m, known in self.known.items() if m[0] != server or m[1] >= FROZEN}
        self._sent.pop(server, None)
        self._heard.discard(server)
        earlier = [member for member in self.known if member[0] == server]
        if beginning.local_new or beginning.local_old:
            for number, known in enumerate(now, start=FROZEN + len(earlier)):
                self.known[server, number] = known
        self.hidden = {member for member in self.hidden if member[0] != server}
        if beginning.local_old:
            self.hidden |= {member for member in self.known if member[0] == server}

    def used_by(self, server: int) -> int:
        return 0

    def receive(self, server: int, message: Message) -> None:
        if not (isinstance(message, Digest) and server in self.servers):
            kind = type(message).__name__
            raise InvalidMessage(f"the global server does not take a {kind} from server {server}")
        news = {
            (server, read_id(e.cluster)): read_released(e.statistics, e.noise, self.dim)
            for e in message.news
        }
        numbers = [read_id(stream) for stream in message.present]
        check_named(numbers, "digest")
        for released in news.values():
            check_released(released, self.limits)
        if max(numbers, default=0) >= FROZEN:
            raise InvalidMessage("a digest names a stream of an earlier session")
        present = {(server, number) for number in numbers}
        kept = {member: known for member, known in self.known.items() if member in present}
        if (kept | news).keys() != present:
            raise InvalidMessage("a digest must bring the statistics of the streams that it names")
        others = {
            member: known
            for member, known in self.known.items()
            if member[0] != server or member[1] >= FROZEN
        }
        self.known = others | kept | news
        self._heard.add(server)

    @property
    def next_phase(self) -> None:
        """Live, local servers start their own."""

    @property
    def missing(self) -> set[int]:
        """Nothing: no server waits for another."""
        return set()

    def limit(self, clusters: int) -> None:
        """Nothing limits how often servers report."""

    @property
    def reported(self) -> int:
        """How many observations were released."""
        return sum(known.statistics.count for known in self.known.values())

    def released_by(self, server: int) -> int:
        """How many observations of a server were released."""
        return sum(k.statistics.count for (owner, _), k in self.known.items() if owner == server)

    def paid_by(self, server: int) -> float:
        """A user's stream is paid once."""
        return float(self.released_by(server) > 0)

    def overview(self) -> list[GlobalOverview]:
        """The streams of each server."""
        members = sorted(self.known)
        owners = np.array([server for server, _ in members], dtype=np.int64)
        counts = np.array([self.known[member].statistics.count for member in members])
        return global_overview(members, owners, np.bincount(owners, counts))

    def _answer(self, servers: list[int]) -> None:
        """Numbers of shares are new whenever what they stand for is."""
        for server in servers:
            sent, now, news = self._sent.get(server, {}), {}, []
            shown = [
                member
                for member in sorted(self.known)
                if member[0] != server or (member[1] >= FROZEN and member not in self.hidden)
            ]
            for member in shown:
                statistics, noise = self.known[member]
                key = (*member, statistics.count)
                if key in sent:
                    now[key] = sent[key]
                else:
                    now[key], self.next_share = self.next_share, self.next_share + 1
                    news.append(Share(now[key], write_statistics(statistics), noise))
            self._sent[server] = now
            others = {owner for owner, _ in shown} - {server}
            present = tuple(now.values())
            self.link.to_local(server, Shares(self.phase, len(others), present, tuple(news)))

    def state(self) -> State:
        known = [known.statistics for known in self.known.values()]
        values = {
            "phase": self.phase,
            "known": [(*member, known.noise) for member, known in self.known.items()],
            "hidden": sorted(self.hidden),
            "next_share": self.next_share,
            "sent": [(server, list(keys.items())) for server, keys in self._sent.items()],
        }
        return pack_statistics(known, self.dim, "world."), values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        known = unpack_statistics(arrays, "world.")
        self.known = {
            (server, stream): ReleasedSums(statistics, noise)
            for (server, stream, noise), statistics in zip(values["known"], known, strict=True)
        }
        self.hidden = {(server, stream) for server, stream in values["hidden"]}
        self.next_share, self.phase = int(values["next_share"]), int(values["phase"])
        self._sent = {
            server: {(owner, stream, count): number for (owner, stream, count), number in keys}
            for server, keys in values["sent"]
        }
