"""Exact sums: at counts that grow geometrically a server sends what its learner contributes.

A contribution is a vector of agreed length that is the sum over all users of a server. A later one
takes the place of the one before, and every server is told the sum of all others. There is no noise
and no ledger: nothing is claimed about what leaves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fclub.core.statistics import Statistics
from fclub.core.types import Vector
from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.gathering import GatheringGlobal
from fclub.protocol.interfaces.exchange import (
    Account,
    Begin,
    Beginning,
    GlobalStatus,
    Moment,
    Status,
)
from fclub.protocol.interfaces.learner import ANYTIME, FORGET, REPLACE, Job, Learner, State, SumNews
from fclub.protocol.interfaces.overview import (
    OBSERVATIONS,
    TYPE,
    GlobalOverview,
    LocalOverview,
    Outlook,
)
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import Count, Decoder, Message, PhaseStart
from fclub.protocol.phase import GeometricClock

SUMS = "sums"
"""The kind of job that adds users up, and the name of its result."""

EVERYBODY = 0
"""The id of what a server has sent."""


class Contribution(Message, frozen=True, array_like=True, tag="contribution"):
    """The learner's sums over all users of a server, and of how many observations they are."""

    sums: bytes
    observations: int

    def count(self) -> Count:
        return Count(uploads=1)


class Total(Message, frozen=True, array_like=True, tag="total"):
    """The contributions of so many other servers, added up."""

    sums: bytes
    servers: int

    def count(self) -> Count:
        return Count(downloads=1)


decode = Decoder(Contribution, Total, PhaseStart)


def _write(sums: Vector) -> bytes:
    return sums.astype("<f8").tobytes()


def _read(data: bytes, size: int) -> Vector:
    if len(data) != 8 * size:
        raise InvalidMessage(f"expected sums of {size} numbers, got {len(data)} bytes")
    sums = np.frombuffer(data, "<f8").astype(np.float64)
    if not np.all(np.isfinite(sums)):
        raise InvalidMessage("expected finite sums, got others")
    return sums


class ExactLocal:
    """Sends the learner's contribution of `size` numbers.

    With a clock of its own it does so when its own count calls for it, as a live server does; without
    one it waits for the global server to start a phase. `told` observations are known outside.
    """

    supports = frozenset({FORGET, REPLACE, ANYTIME})
    by_user: tuple[str, ...] = ()
    paused = False

    def __init__(
        self, learner: Learner[SumNews], size: int, link: Uplink, clock: GeometricClock | None
    ) -> None:
        self.learner, self.size, self.link, self.clock = learner, size, link, clock
        self.told = 0

    def _observed(self) -> int:
        return int(self.learner.counts.sum())

    def _job(self) -> Job:
        return Job(SUMS, len(self.learner.counts), ask={"observations": self._observed()})

    def visited(self, row: int) -> None:
        """What a single visit brings is never due at once."""

    def withhold(self, row: int, part: Statistics) -> None:
        """Contributions take each other's place, so that nothing counts twice."""

    def forget(self, row: int) -> int:
        """The next contribution is without this user."""
        return int(self.learner.counts[row]) if self.told else 0

    def due(self, moment: Moment | None) -> Begin | None:
        if moment is not None or self.clock is None or self.paused:
            return None
        if self._observed() < max(1, self.clock.next_start):
            return None
        return self._begin

    def _begin(self) -> Job:
        assert self.clock is not None
        self.clock.advance(self._observed())
        return self._job()

    def finish(self, job: Job) -> None:
        """What is not sent now, because both sides do not agree, `resume` begins again."""
        if not self.paused:
            self.told = job.ask["observations"]
            self.link.to_global(Contribution(_write(job.total[SUMS]), self.told))

    def receive(self, message: Message) -> Job | None:
        match message:
            case PhaseStart() if self.clock is None:
                return self._job() if self._observed() > self.told else None
            case Total():
                if message.servers < 1:
                    raise InvalidMessage(f"expected sums of other servers, got {message.servers}")
                self.learner.absorb(SumNews(_read(message.sums, self.size), message.servers))
                return None
        raise InvalidMessage(f"a local server does not take a {type(message).__name__}")

    def resume(self) -> Job | None:
        begun = self.clock is not None and self.clock.phase > 0
        return self._job() if begun and self._observed() > self.told else None

    def start_session(self, beginning: Beginning) -> Job | None:
        self.told = 0
        return self.resume()

    def status(self) -> Status:
        at, seen = self.clock.next_start if self.clock else None, self._observed()
        return Status(max(0, seen - self.told), Outlook(OBSERVATIONS, seen, at))

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        """Types are the same on every server; of other clusters nobody else knows."""
        return [
            replace(one, cluster=number, group=number) if self.told and one.kind == TYPE else one
            for number, one in enumerate(clusters)
        ]

    def state(self) -> State:
        return {}, {"told": self.told, "clock": None if self.clock is None else self.clock.state()}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.told = values["told"]
        if self.clock is not None:
            self.clock.restore(values["clock"])


class ExactGlobal(GatheringGlobal):
    """Knows every server by its last contribution, of `size` numbers."""

    def __init__(self, servers: list[int], size: int, link: Downlink) -> None:
        super().__init__(servers, link)
        self.size = size
        self.known: dict[int, tuple[Vector, int]] = {}

    def start_session(self, server: int, beginning: Beginning) -> None:
        """Whatever its store is now, it sends all of it again."""
        self._news = self.known.pop(server, None) is not None or self._news
        self._tell(server)

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Contribution() if server in self.servers:
                if message.observations < 0:
                    raise InvalidMessage(f"expected observations, got {message.observations}")
                self.known[server] = _read(message.sums, self.size), message.observations
                self._news = True
            case _:
                kind = type(message).__name__
                raise InvalidMessage(f"the global server does not take a {kind} from server {server}")

    def _tell(self, server: int) -> None:
        others = [sums for owner, (sums, _) in sorted(self.known.items()) if owner != server]
        if others:
            total: Vector = np.sum(others, axis=0)
            self.link.to_local(server, Total(_write(total), len(others)))

    def status(self) -> GlobalStatus:
        """Live, local servers start their own phases, and none waits for another."""
        return GlobalStatus(self.phase, sum(count for _, count in self.known.values()))

    def account(self, server: int) -> Account:
        """Nothing is claimed, and nothing is paid."""
        return Account(self.known[server][1] if server in self.known else 0, 0.0)

    def overview(self) -> list[GlobalOverview]:
        members = [(server, EVERYBODY) for server in sorted(self.known)]
        return [GlobalOverview(self.status().reported, members)] if members else []

    def state(self) -> State:
        arrays = {str(server): sums for server, (sums, _) in self.known.items()}
        counts = [(server, count) for server, (_, count) in self.known.items()]
        return arrays, {"phase": self.phase, "news": self._news, "known": counts}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.phase, self._news = values["phase"], values["news"]
        self.known = {server: (arrays[str(server)], count) for server, count in values["known"]}
