"""Exact sums by type, in rounds: servers send theirs, and are told the types and all others' sums.

Each phase has STEPS rounds. The global server splits and merges types where the sums of all say so.
There is no noise and no ledger: nothing is claimed about what leaves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from fclub.core.plus.packed_sums import length_of_splits, read_splits, write_splits
from fclub.core.plus.split_sums import SplitSums, halves_are_possible
from fclub.core.plus.type_sums import VISITS, are_possible
from fclub.core.statistics import Statistics
from fclub.core.types import Floats
from fclub.errors import InvalidMessage
from fclub.protocol.interfaces.exchange import (
    Account,
    Begin,
    Beginning,
    GlobalStatus,
    Moment,
    Status,
)
from fclub.protocol.interfaces.learner import ANYTIME, FORGET, REPLACE, Job, State
from fclub.protocol.interfaces.overview import (
    OBSERVATIONS,
    TYPE,
    GlobalOverview,
    LocalOverview,
    Outlook,
)
from fclub.protocol.learners.splitter import Grouping, Splitter
from fclub.protocol.learners.types import ADDING, FIRST_PHASE, STEPS, RoundNews, Types
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import (
    MAX_COUNT,
    ROUNDING,
    Count,
    Decoder,
    Message,
    Part,
    PhaseStart,
    check_named,
    write_id,
)
from fclub.protocol.phase import GeometricClock


class TypePart(NamedTuple):
    """A type as the list of what was sent shows it: its number, and how many observations."""

    cluster: bytes
    statistics: bytes


class TypeDigest(Message, frozen=True, array_like=True, tag="types"):
    """A server's sums in the `step`-th round of a phase, over types with these `ids`.

    `version` and `candidates` are those of a `Grouping`.
    """

    phase: int
    step: int
    version: int
    ids: tuple[int, ...]
    candidates: tuple[int, ...]
    sums: bytes

    def count(self) -> Count:
        return Count(phases=len(self.ids))

    def parts(self) -> Sequence[Part]:
        types = len(self.ids)
        visits = np.frombuffer(self.sums, dtype="<f8", count=types, offset=8 * types)
        counts = [struct.pack("<q", round(count)) for count in visits]
        named = zip(self.ids, counts, strict=True)
        return [TypePart(write_id(k), count) for k, count in named]


class TypeNews(Message, frozen=True, array_like=True, tag="type-news"):
    """The types from now on, and what the other `servers`, so many, add up to by them.

    New halves of the types at the places `fresh` begin at the centres in `starts`. If types were split
    or merged, `own` are the receiver's sums by the types as they are now.
    """

    phase: int
    step: int
    servers: int
    version: int
    ids: tuple[int, ...]
    candidates: tuple[int, ...]
    fresh: tuple[int, ...]
    starts: bytes
    own: bytes
    sums: bytes

    def count(self) -> Count:
        return Count(phases=len(self.ids) if self.servers else 0)


decode = Decoder(TypeDigest, TypeNews, PhaseStart)


def to_bytes(values: Floats) -> bytes:
    """8 bytes each, little-endian."""
    return values.astype("<f8").tobytes()


def read_told(data: bytes, types: int, dim: int) -> SplitSums:
    """Sums that users can add up to; refuses others."""
    length = 8 * length_of_splits(types, dim)
    if len(data) != length:
        raise InvalidMessage(f"expected sums of {length} bytes, got {len(data)}")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise InvalidMessage("sums are not finite")
    sums = read_splits(values, types, dim)
    if not are_possible(sums.sums, 2.0 * MAX_COUNT, ROUNDING):
        raise InvalidMessage("sums that users cannot add up to")
    if not halves_are_possible(sums, ROUNDING):
        raise InvalidMessage("halves of types that users cannot add up to")
    return sums


def read_grouping(message: TypeDigest | TypeNews, most: int) -> Grouping:
    """Refuse what no server says of its types."""
    version, ids, candidates = message.version, message.ids, message.candidates
    check_named(ids, "list of types")
    named = 1 <= len(ids) <= most and all(0 <= k < most for k in ids)
    if not named or len(candidates) != len(ids) or min(candidates) < 0 or version < 0:
        raise InvalidMessage(f"expected 1 to {most} types with their halves, got {ids}, {candidates}")
    return Grouping(version, ids, candidates)


def read_starts(data: bytes, fresh: Sequence[int], types: int, dim: int) -> Floats:
    """Two centres for each type whose halves are new."""
    if len(data) != 16 * dim * len(fresh) or not all(0 <= k < types for k in fresh):
        raise InvalidMessage(f"expected starts of {len(fresh)} of {types} types, got {len(data)} bytes")
    starts = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(starts).all():
        raise InvalidMessage("starts that are not finite")
    return starts.reshape(len(fresh), 2, dim)


class RoundStage(StrEnum):
    """What a server does now: nothing, adding users up, or waiting for the answer to its sums."""

    IDLE = "idle"
    ADDING = "adding"
    ASKED = "asked"


class Course(StrEnum):
    """How it goes through a phase: asking in every round, alone, or first alone and then asking."""

    ASKING = "asking"
    ALONE = "alone"
    ALONE_FIRST = "alone first"


class RoundsLocal:
    """Sends the learner's sums, and lets it move by the answer.

    With a clock of its own it begins phases itself, as a live server does; in a simulation it takes
    part in the first phase, so that the global server knows it, and in others if there is enough to
    learn. After no answer it goes through the next phase alone first, with what others said last. Who
    is `owing` sends all of its sums once both sides agree.
    """

    supports = frozenset({FORGET, REPLACE, ANYTIME})
    by_user: tuple[str, ...] = ()
    paused = False

    def __init__(self, learner: Types, link: Uplink, clock: GeometricClock | None) -> None:
        self.learner, self.link, self.clock = learner, link, clock
        self.phase = self.step = 0
        self.stage, self.course, self.owing = RoundStage.IDLE, Course.ALONE, False

    def visited(self, row: int) -> None:
        """What a single visit brings is never due at once."""

    def withhold(self, row: int, part: Statistics) -> None:
        """Exact sums promise nothing."""

    def _told(self) -> int:
        """Observations that others know of."""
        return int(self.learner.splits.sums.scalars[VISITS])

    def forget(self, row: int) -> int:
        return int(self.learner.counts[row]) if self._told() else 0

    def due(self, moment: Moment | None) -> Begin | None:
        """Nothing while users are added up."""
        if moment is not None or self.clock is None or self.stage is RoundStage.ADDING:
            return None
        if self.learner.observations < self.clock.next_start or not self.learner.has_begun:
            return None
        return self._begin

    def _begin(self) -> Job:
        assert self.clock is not None
        self.clock.advance(self.learner.observations)
        return self._phase(self.clock.phase)

    def _phase(self, phase: int) -> Job:
        """What the others have not answered yet is not awaited any more."""
        unheard = self.stage is RoundStage.ASKED and self.clock is not None
        asks = Course.ALONE_FIRST if unheard else Course.ASKING
        self.phase, self.course = phase, Course.ALONE if self.paused else asks
        return self._round(0)

    def _round(self, step: int) -> Job:
        self.step, self.stage = step, RoundStage.ADDING
        return Job(ADDING, len(self.learner.counts))

    def finish(self, job: Job) -> Job | None:
        """Ask; who meant to goes on alone if it may not tell anything any more."""
        if self.course is Course.ASKING and not self.paused:
            self.owing, self.stage = False, RoundStage.ASKED
            sums = to_bytes(write_splits(self.learner.splits))
            self.link.to_global(TypeDigest(self.phase, self.step, *self.learner.grouping, sums))
            return None
        if self.course is Course.ASKING:
            self.course = Course.ALONE
        self.learner.move({}, last=self._last)
        return self._next()

    @property
    def _last(self) -> bool:
        return self.step + 1 == STEPS

    def _next(self) -> Job | None:
        if not self._last:
            return self._round(self.step + 1)
        self.step += 1
        if self.course is Course.ALONE_FIRST and not self.paused:
            self.course = Course.ASKING
            return self._round(0)
        self.stage = RoundStage.IDLE
        return None

    def receive(self, message: Message) -> Job | None:
        match message:
            case TypeNews():
                return self._adopt(message)
            case PhaseStart() if self.clock is None:
                begins = not self.phase or self.learner.takes_part(message.phase)
                return self._phase(message.phase) if begins else None
        raise InvalidMessage(f"a server of types does not take a {type(message).__name__}")

    def _adopt(self, message: TypeNews) -> Job | None:
        """Move types by the sums of all servers, and make the next ones.

        A late answer is of no use: the server has gone on without it.
        """
        asked, learner = (message.phase, message.step), self.learner
        if asked < (self.phase, self.step):
            return None
        if (
            self.stage is not RoundStage.ASKED
            or asked != (self.phase, self.step)
            or message.servers < 0
        ):
            raise InvalidMessage(f"sums of others for step {message.step}, which was not asked for")
        grouping = read_grouping(message, learner.rules.types)
        shape = len(message.ids), learner.rules.dim
        starts = read_starts(message.starts, message.fresh, *shape)
        same = grouping.same_types(learner.grouping)
        if same == bool(message.own):
            raise InvalidMessage("own sums are told if types have changed, and only then")
        own = learner.splits if same else read_told(message.own, *shape)
        sums, fresh = read_told(message.sums, *shape), dict(zip(message.fresh, starts, strict=True))
        learner.absorb(RoundNews(grouping, own, sums, fresh, message.servers, self._last))
        return self._next()

    def resume(self) -> Job | None:
        """The next phase tells what was learned meanwhile."""
        if not self.owing:
            return None
        self.course = Course.ASKING
        return self._round(0)

    def start_session(self, beginning: Beginning) -> Job | None:
        """Send all sums anew once both sides agree; no answer to an earlier question will come."""
        self.stage = RoundStage.IDLE
        self.owing = self.clock is not None and self.learner.observations > 0
        return None if self.paused else self.resume()

    def status(self) -> Status:
        seen, first = self.learner.observations, FIRST_PHASE * len(self.learner.counts)
        at = max(first, self.clock.next_start) if self.clock else None
        waiting, outlook = max(0, seen - self._told()), Outlook(OBSERVATIONS, seen, at)
        return Status(waiting, outlook, unanswered=self.stage is RoundStage.ASKED)

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        """Types are the same on all servers."""
        told = self._told() > 0
        return [
            replace(
                one,
                cluster=k if told else None,
                group=k if told else None,
                waiting=max(one.own - round(float(visits)) * told, 0),
            )
            for one, k, visits in zip(
                clusters,
                self.learner.grouping.ids,
                self.learner.splits.sums.visits,
                strict=True,
            )
        ]

    def state(self) -> State:
        return {}, {
            "phase": self.phase,
            "step": self.step,
            "stage": self.stage,
            "course": self.course,
            "owing": self.owing,
            "clock": None if self.clock is None else self.clock.state(),
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.phase, self.step, self.owing = values["phase"], values["step"], values["owing"]
        self.stage, self.course = RoundStage(values["stage"]), Course(values["course"])
        if self.clock is not None:
            self.clock.restore(values["clock"])


class RoundsGlobal:
    """Answers all who have sent sums, after each round, with the types and the others' sums.

    Sums of a lost store stay, under the number −1 − server.
    """

    gathers = True

    def __init__(self, servers: list[int], most: int, dim: int, link: Downlink) -> None:
        self.servers, self.dim, self.link = sorted(servers), dim, link
        self.splitter, self.phase = Splitter(most, dim), 0
        self._asked: dict[int, tuple[int, int, Grouping]] = {}

    def invite(self, servers: int) -> None:
        """They send the first message."""
        self.servers = list(range(servers))

    def begin_phase(self, phase: int) -> None:
        """Let every server share out its users and report; answer until none asks any more."""
        self.phase = phase
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        self._answer()

    def due(self, now: float) -> None:
        """It has no times."""

    def advance(self, overdue: bool) -> None:
        """TypeNews those who have reported."""
        self.phase += self._answer()

    def start_session(self, server: int, beginning: Beginning) -> None:
        """A lost store's sums stay; any other one sends all of its own again."""
        last = self.splitter.forget(server)
        self._asked.pop(server, None)
        if beginning.local_new and last is not None:
            self.splitter.freeze(-1 - server, last)
        elif beginning.local_old:
            self.splitter.forget(-1 - server)

    def receive(self, server: int, message: Message) -> None:
        if not (isinstance(message, TypeDigest) and server in self.servers):
            kind = type(message).__name__
            raise InvalidMessage(f"the global server does not take a {kind} from server {server}")
        grouping = read_grouping(message, self.splitter.most)
        if message.step < 0:
            raise InvalidMessage(f"sums at step {message.step}")
        sums = read_told(message.sums, len(message.ids), self.dim)
        self.splitter.learn(server, grouping, sums)
        self._asked[server] = message.phase, message.step, grouping

    def _answer(self) -> bool:
        """Whether somebody's phase was answered for the first time.

        Where answers are answered at once, as in a simulation, this goes on until no server asks.
        """
        begun = False
        while self._asked:
            asked, self._asked = self._asked, {}
            begun |= any(step == 0 for _, step, _ in asked.values())
            self.splitter.decide()
            news = [self._news(server, *question) for server, question in asked.items()]
            for server, message in zip(asked, news, strict=True):
                self.link.to_local(server, message)
        return begun

    def _news(self, server: int, phase: int, step: int, before: Grouping) -> TypeNews:
        types, fresh = self.splitter, self.splitter.fresh
        same = before.same_types(types.grouping)
        starts = np.concatenate([np.zeros(0), *(start.ravel() for start in fresh.values())])
        others = [number for number in types.known if number not in (server, -1 - server)]
        return TypeNews(
            phase,
            step,
            len({max(number, -1 - number) for number in others}),
            *types.grouping,
            fresh=tuple(fresh),
            starts=to_bytes(starts),
            own=b"" if same else to_bytes(types.own(server)),
            sums=to_bytes(types.others(server)),
        )

    def status(self) -> GlobalStatus:
        """Live, local servers start their own phases, and none waits for another."""
        return GlobalStatus(self.phase, sum(self.account(one).released for one in self.servers))

    def account(self, server: int) -> Account:
        """In all sessions. Exact sums are told at once."""
        known = self.splitter.known
        numbers = [number for number in (server, -1 - server) if number in known]
        released = sum(round(float(known[number].sums.scalars[VISITS])) for number in numbers)
        return Account(released, float(released > 0))

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
        return arrays, {"phase": self.phase, "types": values, "asked": list(self._asked.items())}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.splitter.restore(arrays, values["types"])
        self.phase = values["phase"]
        self._asked = {
            server: (phase, step, Grouping(version, tuple(ids), tuple(candidates)))
            for server, (phase, step, (version, ids, candidates)) in values["asked"]
        }
