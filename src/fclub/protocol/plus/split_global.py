"""The global server of types whose number adapts: it adds up sums, and splits and merges types."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.plus.type_sums import VISITS
from fclub.errors import InvalidMessage
from fclub.protocol.link import Downlink
from fclub.protocol.messages import Message, PhaseStart
from fclub.protocol.plus.split_hub import Splitter
from fclub.protocol.plus.split_messages import (
    TypeDigest,
    TypeNews,
    check_types,
    read_told,
)
from fclub.protocol.plus.type_messages import to_bytes
from fclub.protocol.seam import TYPE, Beginning, Gathering, GlobalOverview, State


class SplitGlobal(Gathering):
    """Answers all who have sent sums, after each exchange, with the types and the others' sums.

    Sums of a lost store stay, under the number −1 − server.
    """

    def __init__(self, servers: list[int], most: int, dim: int, link: Downlink) -> None:
        self.servers, self.dim, self.link = sorted(servers), dim, link
        self.splitter, self.phase = Splitter(most, dim), 0
        self._asked: dict[int, tuple[int, int, int, tuple[int, ...]]] = {}

    def begin_phase(self, phase: int) -> None:
        """Let every server share out its users and report; answer until none asks any more."""
        self.phase = phase
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        self._answer()

    def advance(self, overdue: bool = False) -> None:
        """Live: answer those who have reported."""
        self.phase += self._answer()

    def invite(self, servers: int) -> None:
        """Live: servers 0, 1, … take part; they send the first message."""
        self.servers = list(range(servers))

    def begin(self, server: int, beginning: Beginning) -> None:
        """A lost store's sums stay; any other one sends all of its own again."""
        last = self.splitter.forget(server)
        self._asked.pop(server, None)
        if beginning.local_new and last is not None:
            self.splitter.freeze(-1 - server, last)
        elif beginning.local_old:
            self.splitter.forget(-1 - server)

    def used_by(self, server: int) -> int:
        return 0

    def receive(self, server: int, message: Message) -> None:
        if not (isinstance(message, TypeDigest) and server in self.servers):
            kind = type(message).__name__
            raise InvalidMessage(f"the global server does not take a {kind} from server {server}")
        check_types(message.ids, message.candidates, message.version, self.splitter.most)
        if message.step < 0:
            raise InvalidMessage(f"sums at step {message.step}")
        sums = read_told(message.sums, len(message.ids), self.dim)
        told = message.version, message.ids, message.candidates
        self.splitter.learn(server, *told, sums)
        self._asked[server] = message.phase, message.step, message.version, message.ids

    def _answer(self) -> bool:
        """Whether somebody's phase was answered for the first time.

        Where answers are answered at once, as in a simulation, this goes on until no server asks.
        """
        begun = False
        while self._asked:
            asked, self._asked = self._asked, {}
            begun |= any(step == 0 for _, step, *_ in asked.values())
            types = self.splitter
            types.decide()
            news = [self._news(server, *step) for server, step in asked.items()]
            for server, message in zip(asked, news, strict=True):
                self.link.to_local(server, message)
        return begun

    def _news(self, server: int, phase: int, step: int, version: int, ids: tuple[int, ...]) -> TypeNews:
        types, fresh = self.splitter, self.splitter.fresh
        own = b"" if types.same(version, ids) else to_bytes(types.own(server))
        starts = np.concatenate([np.zeros(0), *(start.ravel() for start in fresh.values())])
        others = [number for number in types.known if number not in (server, -1 - server)]
        return TypeNews(
            phase,
            step,
            len({max(number, -1 - number) for number in others}),
            types.version,
            tuple(types.ids),
            tuple(types.candidates),
            tuple(fresh),
            to_bytes(starts),
            own,
            to_bytes(types.others(server)),
        )

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
        return sum(map(self.released_by, self.servers))

    def released_by(self, server: int) -> int:
        """In all sessions."""
        known = self.splitter.known
        numbers = [number for number in (server, -1 - server) if number in known]
        return sum(round(float(known[number].sums.scalars[VISITS])) for number in numbers)

    def paid_by(self, server: int) -> float:
        """Exact sums are told at once."""
        return float(self.released_by(server) > 0)

    def overview(self) -> list[GlobalOverview]:
        """All types, once somebody has told of users, and the servers that know them."""
        visits = self.splitter.total.sums.visits
        observed, members = [round(float(count)) for count in visits], sorted(self.splitter.known)
        return [
            GlobalOverview(
                count,
                [(server, k) for server in members if server >= 0],
                k,
                TYPE,
                count / max(sum(observed), 1),
            )
            for k, count in zip(self.splitter.ids, observed, strict=True)
            if members
        ]

    def state(self) -> State:
        arrays, values = self.splitter.state()
        asked = [[server, *rest, list(ids)] for server, (*rest, ids) in self._asked.items()]
        return arrays, {"phase": self.phase, "types": values, "asked": asked}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.splitter.restore(arrays, values["types"])
        self.phase = int(values["phase"])
        self._asked = {
            server: (phase, step, version, tuple(ids))
            for server, phase, step, version, ids in values["asked"]
        }
