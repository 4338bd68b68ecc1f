"""The global server of the plus policies: merges released clusters, sends everyone the others'."""

from __future__ import annotations

from functools import reduce
from math import sqrt
from operator import add
from typing import Any

import numpy as np

from fclub.core.clustering import number_by_first
from fclub.core.plus.evidence import Noise, agglomerate, all_information
from fclub.core.plus.mixture import concentration
from fclub.core.statistics import pack_statistics, unpack_statistics
from fclub.core.types import Indices
from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.released import ReleasedSums, read_released
from fclub.protocol.link import Downlink
from fclub.protocol.messages import Message, PhaseStart, read_id, write_id, write_statistics
from fclub.protocol.plus.messages import (
    Digest,
    Share,
    Shares,
    check_digest,
)
from fclub.protocol.plus.rules import PlusRules
from fclub.protocol.seam import Beginning, Gathering, GlobalOverview, Member, State, global_overview

FROZEN = 1 << 40
"""Clusters of earlier sessions are numbered from here on: no server has so many of its own."""


class PlusGlobal(Gathering):
    """Knows local clusters by server, opaque number and released statistics.

    Merges need evidence: the log odds have to exceed `margin`, because weak statistics agree with
    everything and their sum would look stronger than it is.

    A simulation starts phases for all servers together (`begin_phase`). Live, every server keeps its
    own clock and is answered when it has reported (`advance`), so no server waits for another.

    What a server released in earlier sessions, of data that it does not release again, stays known
    under numbers from `FROZEN` on. It is `hidden` from a server that may still hold the same data.
    """

    def __init__(
        self, servers: list[int], rules: PlusRules, noise: Noise, margin: float, link: Downlink
    ) -> None:
        self.servers, self.rules, self.margin, self.link = sorted(servers), rules, margin, link
        self.noise = noise
        self.known: dict[Member, ReleasedSums] = {}
        self.group: dict[Member, int] = {}
        self.gamma, self.next_share, self.phase = 1.0, 0, 0
        self.hidden: set[Member] = set()
        self._sent: dict[int, dict[tuple[Any, ...], int]] = {}
        self._heard: set[int] = set()
        self._answered = 0

    def begin_phase(self, phase: int) -> None:
        """Let every server detect and report; answer if one of them had news."""
        self.phase = phase
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        if self._heard and self.known:
            self._answer(self.servers)
        self._heard.clear()

    def advance(self, overdue: bool = False) -> None:
        """Live: merge once for those who have reported, and answer them."""
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
        self._forget_clusters(server)
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
        match message:
            case Digest() if server in self.servers:
                self._learn(server, message)
            case _:
                kind = type(message).__name__
                raise InvalidMessage(f"the global server does not take a {kind} from server {server}")

    def _learn(self, server: int, message: Digest) -> None:
        released = {
            read_id(e.cluster): read_released(e.statistics, e.noise, self.rules.dim, e.people)
            for e in message.news
        }
        numbers = [read_id(cluster) for cluster in message.present]
        check_digest(numbers, released, self.rules)
        news = {(server, number): known for number, known in released.items()}
        if max(numbers, default=0) >= FROZEN:
            raise InvalidMessage("a digest names a cluster of an earlier session")
        present = {(server, number) for number in numbers}
        kept = {member: known for member, known in self.known.items() if member in present}
        if (kept | news).keys() != present:
            raise InvalidMessage("a digest must bring the statistics of the clusters that it names")
        others = {
            member: known
            for member, known in self.known.items()
            if member[0] != server or member[1] >= FROZEN
        }
        self.known = others | kept | news
        self._heard.add(server)

    def _forget_clusters(self, server: int) -> None:
        """A server that has grown large is known by its types from now on, but for earlier sessions."""
        self.known = {m: known for m, known in self.known.items() if m[0] != server or m[1] >= FROZEN}
        self.group = {member: k for member, k in self.group.items() if member[0] != server}
        self._sent.pop(server, None)
        self._heard.discard(server)

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
        """How many observations the global statistics hold."""
        return sum(known.statistics.count for known in self.known.values())

    def released_by(self, server: int) -> int:
        """How many observations of a server the global statistics hold."""
        return sum(k.statistics.count for (owner, _), k in self.known.items() if owner == server)

    def paid_by(self, server: int) -> float:
        """A user's stream is paid once."""
        return float(self.released_by(server) > 0)

    def overview(self) -> list[GlobalOverview]:
        """The clusters of the last merge."""
        members = [member for member in self.group if member in self.known]
        group = np.array([self.group[member] for member in members], dtype=np.int64)
        weights = np.array([self.known[member].statistics.count for member in members])
        return global_overview(members, group, np.bincount(group, weights))

    def _merge(self, members: list[Member]) -> Indices:
        known = (self.known[member] for member in members)
        released = ((s.gram, s.moment, stated) for s, stated, _ in known)
        information, vectors = all_information(released, self.rules.variance, self.noise)
        labels = agglomerate(self.rules.prior, information, vectors, self.gamma, self.margin)
        return number_by_first(labels)

    def _learn_gamma(self, answered: int) -> None:
        """Move γ half the way, in logarithm, to what fits; once for as many answers as servers."""
        self._answered += answered
        if len(self.group) > 1 and self._answered >= len(self.servers):
            found = float(len(set(self.group.values())))
            self.gamma = sqrt(self.gamma * concentration(found, len(self.group)))
            self._answered = 0

    def _answer(self, servers: list[int]) -> None:
        members = sorted(self.known)
        group = self._merge(members) if members else np.zeros(0, dtype=np.int64)
        self.group = {member: int(k) for member, k in zip(members, group, strict=True)}
        self._learn_gamma(len(servers))
        for server in servers:
            own = tuple(
                (write_id(c), k)
                for (owner, c), k in self.group.items()
                if owner == server and c < FROZEN
            )
            sent = self._sent.get(server, {})
            shares = self._shares(server, sent)
            fresh = tuple(share for key, share in shares.items() if key not in sent)
            self._sent[server] = {key: share.number for key, share in shares.items()}
            present = tuple(self._sent[server].values())
            self.link.to_local(server, Shares(self.phase, own, present, fresh, self.gamma))

    def _shares(self, server: int, sent: dict[tuple[Any, ...], int]) -> dict[tuple[Any, ...], Share]:
        """Others' part of every global cluster, by what it consists of."""
        parts: dict[int, list[Member]] = {}
        for member, k in self.group.items():
            if member[0] != server or (member[1] >= FROZEN and member not in self.hidden):
                parts.setdefault(k, []).append(member)
        shares: dict[tuple[Any, ...], Share] = {}
        for _, others in sorted(parts.items()):
            key = tuple((m, self.known[m].statistics.count) for m in others)
            number = sent.get(key)
            if number is None:
                number, self.next_share = self.next_share, self.next_share + 1
            total = reduce(add, (self.known[member] for member in others))
            statistics = write_statistics(total.statistics)
            shares[key] = Share(number, statistics, total.noise, len(others), total.people)
        return shares

    def state(self) -> State:
        known = [known.statistics for known in self.known.values()]
        values = {
            "phase": self.phase,
            "known": [(*member, *rest) for member, (_, *rest) in self.known.items()],
            "group": [(*member, k) for member, k in self.group.items()],
            "gamma": self.gamma,
            "hidden": sorted(self.hidden),
            "answered": self._answered,
            "next_share": self.next_share,
            "sent": [(server, list(keys.items())) for server, keys in self._sent.items()],
        }
        return pack_statistics(known, self.rules.dim, "world."), values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        known = unpack_statistics(arrays, "world.")
        self.known = {
            (server, cluster): ReleasedSums(statistics, *rest)
            for (server, cluster, *rest), statistics in zip(values["known"], known, strict=True)
        }
        self.group = {(server, cluster): k for server, cluster, k in values["group"]}
        self.hidden = {(server, cluster) for server, cluster in values["hidden"]}
        self.gamma, self.next_share = values["gamma"], int(values["next_share"])
        self.phase, self._answered = int(values["phase"]), int(values["answered"])
        self._sent = {
            server: {_as_key(key): number for key, number in keys} for server, keys in values["sent"]
        }


def _as_key(key: list[Any]) -> tuple[Any, ...]:
    """A share's key as JSON gave it back."""
    return tuple(((server, cluster), count) for (server, cluster), count in key)
