"""One stream per user: at counts fixed in advance a server releases a user's sums, with noise.

The local side sends what it has released of each user, and the global side tells every server what
others have released of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from fclub.core.packing import inside, under
from fclub.core.statistics import Statistics, pack_statistics, unpack_statistics
from fclub.core.types import Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.released import Limits, ReleasedSums, check_released, read_released
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.interfaces.exchange import (
    Account,
    Begin,
    Beginning,
    GlobalStatus,
    Moment,
    Status,
)
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Job, Noised, State
from fclub.protocol.interfaces.overview import (
    OBSERVATIONS,
    GlobalOverview,
    LocalOverview,
    Member,
    Outlook,
    global_overview,
)
from fclub.protocol.learners.types import Types, UserNews
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import (
    Count,
    Decoder,
    Message,
    Part,
    PhaseStart,
    check_named,
    read_id,
    write_id,
    write_statistics,
)
from fclub.protocol.phase import GeometricClock

RELEASES = 4
"""Users of whom one part releases what is due: exact noise for one takes a millisecond or two."""

RELEASING = "releases"
"""The kind of job in which a server releases what is due."""

FROZEN = 1 << 40
"""Streams of earlier sessions are numbered from here on: no server has so many of its own."""


@dataclass(frozen=True)
class StreamLimits:
    """`variance` of a reward and prior precision, and what noise there may be.

    Released statistics carry noise of variance at least `least_noise`, and at most `most_noise` for
    each of their observations.
    """

    prior: Matrix
    variance: float
    least_noise: float
    most_noise: float


class News(msgspec.Struct, frozen=True, array_like=True):
    """What was released of a user so far, and the variance of the noise in each entry."""

    cluster: bytes
    statistics: bytes
    noise: float


class Digest(Message, frozen=True, array_like=True, tag="digest"):
    """A server's streams: all numbers, statistics where they have changed."""

    phase: int
    present: tuple[bytes, ...]
    news: tuple[News, ...]

    def count(self) -> Count:
        return Count(phases=len(self.news))

    def parts(self) -> Sequence[Part]:
        return self.news


class ReleasedUser(msgspec.Struct, frozen=True, array_like=True):
    """What was released of a user of another server."""

    number: int
    statistics: bytes
    noise: float


class Shares(Message, frozen=True, array_like=True, tag="shares"):
    """The answer to digests: what was released of the users of so many other `servers`.

    `present` numbers all shares that are valid now, `news` brings those that were not sent before.
    """

    phase: int
    servers: int
    present: tuple[int, ...]
    news: tuple[ReleasedUser, ...]

    def count(self) -> Count:
        return Count(phases=len(self.news))


decode = Decoder(Digest, Shares, PhaseStart)


class UserStreamLocal:
    """Releases what is due of each user by its count, and sends it; learning comes after that.

    So neither depends on how long learning takes. No server knows another one's types, for they depend
    on raw data. With a clock of its own a server begins this itself, as a live server does. What was
    released and waits to be sent is `unsent`: no reward can be replaced meanwhile. A user's stream has
    a number, another one once the user was forgotten; `told` are the counts that were sent by number.
    """

    supports = frozenset({FORGET, REPLACE})
    by_user: tuple[str, ...] = ()
    paused = False

    def __init__(
        self,
        learner: Types,
        releases: PrivateReleases,
        limits: Limits,
        link: Uplink,
        clock: GeometricClock | None,
    ) -> None:
        self.learner, self.releases, self.limits = learner, releases, limits
        self.link, self.clock, self.phase = link, clock, 0
        self.numbers = list(range(len(learner.counts)))
        self.following = len(self.numbers)
        self.told: dict[int, int] = {}
        self.unsent = self.unanswered = self.releasing = False
        self.others: dict[int, ReleasedSums] = {}

    def visited(self, row: int) -> None:
        """A user who comes for the first time gets a stream."""
        while len(self.numbers) <= row:
            self.releases.add_user(self.learner.users)
            self._number(len(self.numbers))

    def _number(self, row: int) -> None:
        self.numbers[row : row + 1] = [self.following]
        self.following += 1

    def withhold(self, row: int, part: Statistics) -> None:
        self.releases.withhold(row, part)

    def forget(self, row: int) -> int:
        """The next phase does without this user."""
        released = self.releases.forget(row)
        self._number(row)
        return released if self.told else 0

    def due(self, moment: Moment | None) -> Begin | None:
        if moment is not None or self.clock is None or self.releasing:
            return None
        seen, begun = self.learner.observations, self.learner.has_begun
        return self._begin if begun and seen >= self.clock.next_start else None

    def _begin(self) -> Job:
        assert self.clock is not None
        self.clock.advance(self.learner.observations)
        return self._release(self.clock.phase)

    def _release(self, phase: int) -> Job:
        """A job of no rows: whatever is due is released as it ends."""
        self.phase, self.releasing = phase, True
        return Job(RELEASING, rows=0, ask={"from": 0})

    def finish(self, job: Job) -> Job | None:
        """Release what is due of a few users, beside serving, or of all; after the last one send it."""
        following = None
        if not self.paused:
            before = int(self.releases.released.counts.sum())
            following = self.releases.advance(job.ask["from"], RELEASES if job.beside else None)
            self.unsent |= int(self.releases.released.counts.sum()) > before
        if following is not None:
            return Job(RELEASING, rows=0, ask={"from": following})
        self.releasing = False
        if not self.paused:
            self._report(self.phase)
        return None

    def _report(self, phase: int) -> None:
        """Send what was released of users who have something new.

        A server with its own clock asks for the others' news also when it has none.
        """
        self.unsent = False
        news, told = [], {}
        for row in np.flatnonzero(self.releases.released.counts > 0).tolist():
            number, released = self.numbers[row], Statistics.of(self.releases.released, row)
            told[number] = released.count
            if self.told.get(number) != released.count:
                noise = float(self.releases.noise[row])
                news.append(News(write_id(number), write_statistics(released), noise))
        if news or told.keys() != self.told.keys() or self.clock is not None:
            self.told, self.unanswered = told, True
            present = tuple(write_id(number) for number in told)
            self.link.to_global(Digest(phase, present, tuple(news)))

    def receive(self, message: Message) -> Job | None:
        match message:
            case Shares():
                self._adopt(message)
                return None
            case PhaseStart() if self.clock is None:
                begins = not self.phase or self.learner.takes_part()
                return self._release(message.phase) if begins else None
        raise InvalidMessage(f"a server of streams does not take a {type(message).__name__}")

    def _adopt(self, message: Shares) -> None:
        """A message that is refused changes nothing."""
        dim = len(self.limits.prior)
        arrived = {s.number: read_released(s.statistics, s.noise, dim) for s in message.news}
        for released in arrived.values():
            check_released(released, self.limits)
        known = self.others | arrived
        if not known.keys() >= set(message.present):
            raise InvalidMessage("shares refer to statistics that were never sent")
        if message.servers < 0:
            raise InvalidMessage(f"shares of {message.servers} servers")
        self.others = {number: known[number] for number in message.present}
        self.unanswered = False
        self._absorb(message.servers)

    def _absorb(self, servers: int) -> None:
        known = [Noised(released.statistics, released.noise) for released in self.others.values()]
        self.learner.absorb(UserNews(known, servers))

    def resume(self) -> None:
        """What was not released meanwhile is due at the next phase."""

    def start_session(self, beginning: Beginning) -> None:
        """What was released is sent again: it costs nothing."""
        if beginning.local_old:
            self.releases.close()
        self.told, self.unanswered, self.releasing = {}, False, False
        if self.clock is not None and self.numbers:
            self._report(self.clock.phase)

    def status(self) -> Status:
        seen, known = self.learner.observations, self.releases.closed + sum(self.told.values())
        at = self.clock.next_start if self.clock else None
        return Status(
            waiting=max(0, seen - known),
            outlook=Outlook(OBSERVATIONS, seen, at),
            unanswered=self.unanswered,
            streams=self.releases.open_streams(),
            unsent=self.unsent,
        )

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        """Nobody else knows this server's types."""
        told = [float(self.told.get(number, 0)) for number in self.numbers]
        sent = np.bincount(self.learner.labels(), told, len(clusters))
        waiting = [max(int(one.own - n), 0) for one, n in zip(clusters, sent, strict=True)]
        return [replace(one, waiting=n) for one, n in zip(clusters, waiting, strict=True)]

    def state(self) -> State:
        arrays = under("releases.", self.releases.state())
        others = [released.statistics for released in self.others.values()]
        arrays |= pack_statistics(others, len(self.limits.prior), "others.")
        return arrays, {
            "phase": self.phase,
            "clock": None if self.clock is None else self.clock.state(),
            "numbers": self.numbers,
            "following": self.following,
            "told": list(self.told.items()),
            "now": [self.unsent, self.unanswered, self.releasing],
            "others": [(number, released.noise) for number, released in self.others.items()],
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.phase, self.following = values["phase"], values["following"]
        self.numbers, self.told = list(values["numbers"]), dict(values["told"])
        self.unsent, self.unanswered, self.releasing = values["now"]
        self.releases.restore(inside("releases.", arrays), self.learner.users)
        others = unpack_statistics(arrays, "others.")
        self.others = {
            number: ReleasedSums(statistics, noise)
            for (number, noise), statistics in zip(values["others"], others, strict=True)
        }
        self._absorb(self.learner.sharing)
        if self.clock is not None:
            self.clock.restore(values["clock"])


class UserStreamGlobal:
    """Knows streams by server, opaque number and released statistics.

    A simulation starts phases for all servers together (`begin_phase`). Live, every server keeps its
    own clock and is answered when it has reported (`advance`), so no server waits for another.

    What a server released in earlier sessions, of data that it does not release again, stays known
    under numbers from `FROZEN` on. It is `hidden` from a server that may still hold the same data.
    """

    gathers = True

    def __init__(self, servers: list[int], limits: Limits, link: Downlink) -> None:
        self.servers, self.limits, self.link = sorted(servers), limits, link
        self.dim = len(limits.prior)
        self.known: dict[Member, ReleasedSums] = {}
        self.next_share, self.phase = 0, 0
        self.hidden: set[Member] = set()
        self._sent: dict[int, dict[tuple[int, int, int], int]] = {}
        self._heard: set[int] = set()

    def begin_phase(self, phase: int) -> None:
        """Let every server release and report; answer if one of them had news."""
        self.phase = phase
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        if self._heard and self.known:
            self._answer(self.servers)
        self._heard.clear()

    def due(self, now: float) -> None:
        """It has no times."""

    def advance(self, overdue: bool) -> None:
        """Answer those who have reported."""
        if self._heard:
            self.phase += 1
            self._answer(sorted(self._heard))
            self._heard.clear()

    def invite(self, servers: int) -> None:
        """They send the first message."""
        self.servers = list(range(servers))

    def start_session(self, server: int, beginning: Beginning) -> None:
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

    def status(self) -> GlobalStatus:
        """Live, local servers start their own phases, and none waits for another."""
        return GlobalStatus(self.phase, sum(known.statistics.count for known in self.known.values()))

    def account(self, server: int) -> Account:
        """A user's stream is paid once."""
        counts = [known.statistics.count for (owner, _), known in self.known.items() if owner == server]
        return Account(sum(counts), float(sum(counts) > 0))

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
                    news.append(ReleasedUser(now[key], write_statistics(statistics), noise))
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
