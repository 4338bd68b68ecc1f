"""One stream per server: at counts fixed in advance a server releases its sums, with noise.

The local side sends all that it has released so far, and the global side tells every server what all
others have released together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fclub.core.packing import flatten, inside, rebuild, under, with_row
from fclub.core.statistics import Packed, Statistics, pack_statistics, unpack_statistics
from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.gathering import GatheringGlobal
from fclub.protocol.exchanges.released import Limits, check_released, check_share, read_released
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.interfaces.exchange import (
    Account,
    Begin,
    Beginning,
    GlobalStatus,
    Moment,
    Status,
)
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Job, Learner, Noised, State, StreamNews
from fclub.protocol.interfaces.overview import OBSERVATIONS, GlobalOverview, LocalOverview, Outlook
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import (
    Count,
    Decoder,
    Message,
    Part,
    PhaseStart,
    read_id,
    write_id,
    write_statistics,
)
from fclub.protocol.phase import GeometricClock

CLUSTER = 0
"""The id and the global cluster of everybody."""


class Sums(Message, frozen=True, array_like=True, tag="sums"):
    """All that a server has released so far, and the variance of the noise in each entry."""

    cluster: bytes
    statistics: bytes
    noise: float

    def count(self) -> Count:
        return Count(uploads=1)

    def parts(self) -> Sequence[Part]:
        return (self,)


class Others(Message, frozen=True, array_like=True, tag="others"):
    """The same of all other servers together, and how many of them have released anything."""

    statistics: bytes
    noise: float
    servers: int

    def count(self) -> Count:
        return Count(downloads=1)


decode = Decoder(Sums, Others, PhaseStart)


class StreamLocal:
    """Releases the learner's sums over all users, whoever they are, by the number of observations.

    With a clock of its own it looks for a release when its own count calls for it, as a live server
    does; without one it waits for the global server to start a phase. A live server remembers which
    part of each user's statistics is `covered` by releases. `gone` are released observations of users
    who are forgotten: they stay in the count, so that the schedule goes on as it was paid for.
    """

    supports = frozenset({FORGET, REPLACE})
    by_user: tuple[str, ...] = ()
    paused = False

    def __init__(
        self,
        learner: Learner[StreamNews],
        releases: PrivateReleases,
        limits: Limits,
        link: Uplink,
        clock: GeometricClock | None,
    ) -> None:
        self.learner, self.releases, self.limits = learner, releases, limits
        self.link, self.clock = link, clock
        self.covered = self._room = Packed.zeros(len(learner.users.counts), len(limits.prior))
        self.told = self.gone = self.servers = 0
        self.others = Noised(Statistics.zeros(len(limits.prior)))

    def _look(self) -> int:
        """Let the releases see the sums as they are; returns the number of observations."""
        job = Job("look", rows=0)
        self.learner.contribute(job)
        total = Packed(**job.total)
        self.releases.users = total._replace(counts=total.counts + self.gone)
        return int(self.releases.users.counts[0])

    def visited(self, row: int) -> None:
        """What a single visit brings is never due at once."""

    def withhold(self, row: int, part: Statistics) -> None:
        self.releases.withhold(0, part)
        self._make_room()
        self.covered.gram[row] += part.gram
        self.covered.moment[row] += part.moment
        self.covered.counts[row] += part.count

    def _make_room(self) -> None:
        while len(self.covered.counts) < len(self.learner.users.counts):
            self.covered, self._room = with_row(self.covered, self._room)

    def _cover(self) -> None:
        """All that is known of users has been released, or never will be."""
        self._make_room()
        for covered, known in zip(self.covered, self.learner.users, strict=True):
            covered[...] = known

    def forget(self, row: int) -> int:
        self._make_room()
        released = int(self.covered.counts[row])
        self.releases.withdraw(0, Statistics.of(self.covered, row))
        self.covered.clear(row)
        self.gone += released
        return released

    def due(self, moment: Moment | None) -> Begin | None:
        if moment is not None or self.clock is None or self._look() < max(1, self.clock.next_start):
            return None
        return self._begin_phase

    def _begin_phase(self) -> None:
        assert self.clock is not None
        self.clock.advance(self._look())
        self._release()

    def _release(self) -> None:
        """Release what is due by its count, and tell it; what was not released is due next time."""
        if not self.paused:
            self._look()
            before = int(self.releases.released.counts[0])
            self.releases.advance()
            if self.releases.released.counts[0] > before:
                self._cover()
            self._tell()
        self._absorb()

    def _tell(self) -> None:
        """Send all that has been released, if it is more than before."""
        statistics, noise = self._own()
        if statistics.count > self.told:
            self.told = statistics.count
            self.link.to_global(Sums(write_id(CLUSTER), write_statistics(statistics), noise))

    def _own(self) -> Noised:
        return Noised(Statistics.of(self.releases.released, 0), float(self.releases.noise[0]))

    def _absorb(self) -> None:
        statistics, noise = self._own()
        self.learner.absorb(StreamNews(Noised(statistics.copy(), noise), self.others, self.servers))

    def finish(self, job: Job) -> None:
        """Sums are there when they are asked for: no job is ever begun."""

    def receive(self, message: Message) -> None:
        match message:
            case PhaseStart() if self.clock is None:
                self._release()
            case Others():
                known = read_released(message.statistics, message.noise, len(self.limits.prior))
                check_share(known, message.servers, self.limits)
                self.others, self.servers = Noised(known.statistics, known.noise), message.servers
                self._absorb()
            case _:
                raise InvalidMessage(f"a local server does not take a {type(message).__name__}")

    def resume(self) -> None:
        """What was not released meanwhile is due at the next phase."""

    def start_session(self, beginning: Beginning) -> None:
        if beginning.local_old:
            self._look()
            self.releases.close()
            self._cover()
        self.told = 0
        self._tell()

    def _waiting(self) -> int:
        return self._look() - self.releases.closed - self.told

    def status(self) -> Status:
        at = self.clock.next_start if self.clock else None
        outlook, streams = Outlook(OBSERVATIONS, self._look(), at), self.releases.open_streams()
        return Status(self._waiting(), outlook, streams=streams)

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        heard, waiting = CLUSTER if self.told else None, self._waiting()
        return [replace(one, cluster=heard, group=heard, waiting=waiting) for one in clusters]

    def state(self) -> State:
        arrays = flatten(self.covered, "covered.") | under("releases.", self.releases.state())
        arrays |= pack_statistics([self.others.statistics], len(self.limits.prior), "others.")
        clock = None if self.clock is None else self.clock.state()
        heard = {"noise": self.others.noise, "servers": self.servers}
        return arrays, {"told": self.told, "gone": self.gone, "clock": clock} | heard

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.covered = self._room = rebuild(self.covered, arrays, "covered.")
        self.told, self.gone, self.servers = values["told"], values["gone"], values["servers"]
        self._look()
        self.releases.restore(inside("releases.", arrays), self.releases.users)
        (others,) = unpack_statistics(arrays, "others.")
        self.others = Noised(others, values["noise"])
        if self.clock is not None:
            self.clock.restore(values["clock"])


class StreamGlobal(GatheringGlobal):
    """Knows every server by the sum of all that it has released.

    What a server released in earlier sessions, of data that it does not release again, is `frozen`. It
    is `hidden` from a server that may still hold the same data.
    """

    def __init__(self, servers: list[int], limits: Limits, link: Downlink) -> None:
        super().__init__(servers, link)
        self.limits = limits
        self.dim = len(limits.prior)
        self.known: dict[int, Noised] = {}
        self.cluster: dict[int, int] = {}
        self.frozen: dict[int, list[Noised]] = {}
        self.hidden: set[int] = set()

    def start_session(self, server: int, beginning: Beginning) -> None:
        """Keep what an old or a lost store has released; what any other one releases it sends again."""
        known = self.known.pop(server, None)
        if known is not None and (beginning.local_old or beginning.local_new):
            self.frozen.setdefault(server, []).append(known)
        if beginning.local_old:
            self.hidden.add(server)
        elif beginning.local_new:
            self.hidden.discard(server)
        self._tell(server)

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Sums() if server in self.servers:
                known = read_released(message.statistics, message.noise, self.dim)
                check_released(known, self.limits)
                if known.statistics.count < self._released_now(server):
                    raise InvalidMessage(f"server {server} takes back what it has released")
                self.cluster[server] = read_id(message.cluster)
                self.known[server] = Noised(known.statistics, known.noise)
                self._news = True
            case _:
                kind = type(message).__name__
                raise InvalidMessage(f"the global server does not take a {kind} from server {server}")

    def _tell(self, server: int) -> None:
        others = [known for owner, known in sorted(self.known.items()) if owner != server]
        for owner, earlier in sorted(self.frozen.items()):
            if owner != server or owner not in self.hidden:
                others += earlier
        if others:
            total = sum((statistics for statistics, _ in others), Statistics.zeros(self.dim))
            noise = float(sum(noise for _, noise in others))
            self.link.to_local(server, Others(write_statistics(total), noise, len(others)))

    def status(self) -> GlobalStatus:
        """Live, local servers start their own phases, and none waits for another."""
        owners = self.known.keys() | self.frozen.keys()
        return GlobalStatus(self.phase, sum(self.account(owner).released for owner in owners))

    def account(self, server: int) -> Account:
        """A server is one stream, which is paid once."""
        earlier = sum(statistics.count for statistics, _ in self.frozen.get(server, []))
        released = earlier + self._released_now(server)
        return Account(released, float(released > 0))

    def _released_now(self, server: int) -> int:
        """In the present session."""
        return self.known[server].statistics.count if server in self.known else 0

    def overview(self) -> list[GlobalOverview]:
        members = [(server, self.cluster[server]) for server in self.known]
        return [GlobalOverview(self.status().reported, members)] if members else []

    def state(self) -> State:
        earlier = [(server, known) for server, all_ in self.frozen.items() for known in all_]
        released = [known.statistics for known in self.known.values()]
        arrays = pack_statistics(released, self.dim, "known.")
        arrays |= pack_statistics([known.statistics for _, known in earlier], self.dim, "frozen.")
        return arrays, {
            "phase": self.phase,
            "news": self._news,
            "known": [(server, self.cluster[server], one.noise) for server, one in self.known.items()],
            "frozen": [(server, one.noise) for server, one in earlier],
            "hidden": sorted(self.hidden),
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.phase, self._news, self.hidden = values["phase"], values["news"], set(values["hidden"])
        self.known, self.cluster, self.frozen = {}, {}, {}
        released = unpack_statistics(arrays, "known.")
        for (server, cluster, noise), statistics in zip(values["known"], released, strict=True):
            self.known[server], self.cluster[server] = Noised(statistics, noise), cluster
        earlier = unpack_statistics(arrays, "frozen.")
        for (server, noise), statistics in zip(values["frozen"], earlier, strict=True):
            self.frozen.setdefault(server, []).append(Noised(statistics, noise))
