"""Releases of the population in the slots of a plan: whole numbers up, one population down.

In a slot every server adds up what its users contribute at the public point, adds its share of noise,
and sends it. The global server sums, filters, and answers with the sum and the next public point, which
everybody checks by replaying the filter. No message tells a number of users or visits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from math import ceil, floor, sqrt
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fclub.cohorts.members import MOST_MEMBERS
from fclub.cohorts.plan import MOST_USERS, TAIL
from fclub.core.packing import inside, under
from fclub.core.population.filter import (
    FilterState,
    Slot,
    equivalent_users,
    first_state,
    is_public,
    learn,
    pace_of,
    smat,
    svec,
)
from fclub.core.population.model import Population, PublicModel, clip_norm, public_point
from fclub.core.types import Counts
from fclub.errors import InvalidMessage, PrivacyError
from fclub.privacy.ledger import Ledger
from fclub.privacy.noise import NoiseSource
from fclub.privacy.plan import Plan
from fclub.privacy.slots import draw_whole
from fclub.protocol.interfaces.exchange import Account, Begin, Beginning, GlobalStatus, Moment, Status
from fclub.protocol.interfaces.learner import (
    ANYTIME,
    FORGET,
    REPLACE,
    Job,
    Learner,
    PopulationNews,
    State,
)
from fclub.protocol.interfaces.overview import (
    NOTHING,
    TIME,
    TYPE,
    VISITS_PER_USER,
    GlobalOverview,
    LocalOverview,
    Outlook,
)
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import Count, Decoder, Message, PhaseStart, encode

POPULATION = 0
"""The id and the global cluster of everybody."""

TOLERANCE = 1e-6
"""Two computers that filter the same releases agree up to this, in units of the public start."""

ALARM = (
    "the population that the global server told does not follow from the releases: it has another "
    "version of fclub, or is not honest"
)


class Release(Message, frozen=True, array_like=True, tag="population"):
    """What all users of a server contribute to a slot, with noise: whole numbers of 8 bytes.

    They were computed at the population as it was told for slot `told` − 1; 0 is the public start.
    """

    slot: int
    told: int
    sums: bytes

    def count(self) -> Count:
        return Count(uploads=1)


class Released(Message, frozen=True, array_like=True, tag="released"):
    """The sum over so many servers, and mean and covariance of the population from the next slot on.

    Each of them has added noise of the deviation `share`, in lattice steps.
    """

    slot: int
    servers: int
    share: int
    sums: bytes
    point: bytes

    def count(self) -> Count:
        return Count(downloads=1)


decode = Decoder(Release, Released, PhaseStart)


def write_whole(sums: Counts) -> bytes:
    return sums.astype("<i8").tobytes()


def read_whole(data: bytes, entries: int) -> Counts:
    if len(data) != 8 * entries:
        raise InvalidMessage(f"expected {entries} whole numbers, got {len(data)} bytes")
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def write_point(population: Population) -> bytes:
    """Mean and svec of the covariance, in units of D."""
    return np.concatenate([population.mean, svec(population.covariance)]).astype("<f8").tobytes()


def read_point(data: bytes, dim: int) -> Population:
    """The inverse of `write_point`; what no filter could have answered is refused.

    So a covariance is positive definite, whoever tells it.
    """
    size = dim + dim * (dim + 1) // 2
    if len(data) != 8 * size:
        raise InvalidMessage(f"expected a population of {size} numbers, got {len(data)} bytes")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise InvalidMessage("a population that is not finite")
    population = Population(values[:dim], smat(values[dim:], dim))
    if not is_public(population, TOLERANCE):
        raise InvalidMessage("a population beyond the bounds of every filter's answer")
    return population


def check_range(plan: Plan, sums: Counts, servers: int, share: int) -> None:
    """Sums over so many servers that have at most `MOST_USERS` users each."""
    largest = servers * (MOST_USERS * plan.bound + TAIL * share)
    if not np.abs(sums.astype(np.float64)).max() <= largest:
        raise InvalidMessage("whole numbers that no users can have contributed")


class Transcript:
    """All releases so far and what the filter makes of them; it never changes."""

    def __init__(
        self,
        plan: Plan,
        model: PublicModel,
        state: FilterState | None = None,
        releases: tuple[Released, ...] = (),
    ) -> None:
        self.plan, self.model, self.releases = plan, model, releases
        self.state = first_state(model.dim) if state is None else state
        self.point = public_point(model, self.population)
        """Where contributions to the next slot are taken."""
        pace = pace_of(self.state)
        self.most = tuple(clip_norm(model, visits * pace, plan.past) for visits in plan.visits)
        """C_r of every slot, from the plan and the pace of visits in these releases."""

    @cached_property
    def share(self) -> float:
        """Noise that each member adds, in lattice steps."""
        return self.plan.share(self.plan.members)

    @lru_cache(maxsize=128)  # noqa: B019 - servers of one process replay the same releases
    def after(
        self, slot: int, servers: int, share: int, sums: bytes, point: bytes | None = None
    ) -> Transcript:
        """With one release more; `point` is as it was told, if it was."""
        step = self.most[slot] / self.plan.steps
        noise = step * share * sqrt(servers)
        told = Slot(self.plan.visits[slot], self.most[slot], noise, self.plan.past)
        whole = read_whole(sums, self.plan.entries)
        check_range(self.plan, whole, servers, share)
        try:
            state = learn(self.state, told, step * whole.astype(np.float64), self.model)
            point = write_point(state.population) if point is None else point
            last = Released(slot, servers, share, sums, point)
            return Transcript(self.plan, self.model, state, (*self.releases, last))
        except np.linalg.LinAlgError as error:
            raise InvalidMessage(f"no population follows from the sum of slot {slot}") from error

    @property
    def told(self) -> int:
        """The slot that comes after the last one that was released."""
        return self.releases[-1].slot + 1 if self.releases else 0

    @property
    def population(self) -> Population:
        return self.state.population

    def saved(self) -> State:
        """The releases, from which the rest follows."""
        sums = [read_whole(one.sums, self.plan.entries) for one in self.releases]
        values = [[one.slot, one.servers, one.share] for one in self.releases]
        points = [np.frombuffer(one.point, dtype="<f8") for one in self.releases]
        arrays = {"sums": np.array(sums).reshape(-1, self.plan.entries), "points": np.array(points)}
        return arrays, {"releases": values}

    @cached_property
    def digest(self) -> bytes:
        """Of everything that was told, byte for byte."""
        return sha256(b"".join(encode(one) for one in self.releases)).digest()

    def restored(
        self, arrays: dict[str, Any], values: dict[str, Any], releases: int | None = None
    ) -> Transcript:
        """What was saved, or the first so many releases of it, on top of a transcript without any."""
        found = self
        told = list(zip(values["releases"], arrays["sums"], arrays["points"], strict=True))
        for (slot, servers, share), sums, point in told[:releases]:
            found = found.after(slot, servers, share, write_whole(sums), point.tobytes())
        return found


class Prepared(NamedTuple):
    """The sum over users for a slot, without noise; it never leaves the process."""

    slot: int
    sums: Counts


class SlotsLocal:
    """Releases in the slots of its plan, each once; what it computes with was released before.

    Live, slot r is due at `times[r]`, in seconds since 1970, and can be begun until the plan's window
    is over: what was left out then is never made up for. A process uses only slots that came after it
    began, so that no copy of a store uses one again; what may have left before is charged as if it
    had. In a simulation there are no times, and the global server calls for slots. For secure sums
    times and window are whole seconds, as the members of a cohort have them.
    """

    supports = frozenset({FORGET, REPLACE, ANYTIME})
    by_user: tuple[str, ...] = ()
    paused = False

    def __init__(
        self,
        learner: Learner[PopulationNews],
        transcript: Transcript,
        noise: NoiseSource,
        ledger: Ledger,
        name: str,
        link: Uplink,
        times: tuple[float, ...] | None = None,
    ) -> None:
        self.learner, self.transcript, self.plan = learner, transcript, transcript.plan
        self.first = transcript
        self.noise, self.ledger, self.name, self.link = noise, ledger, name, link
        self.in_cohort = times is not None and self.plan.secure
        self.slots, self.times, self.window = self.plan.releases, times, self.plan.window
        if times is not None and self.in_cohort:
            self.times, self.window = tuple(float(ceil(at)) for at in times), floor(self.plan.window)
        self.prepared: Prepared | None = None
        self.following = self.covered = self.servers = 0
        self.claimed = 0
        """Slots of which the other side says that this server has used them."""
        self.open: int | None = None
        self.basis = transcript
        """The releases as they were when the open slot began; what is said of it rests on them."""
        self.void = False
        """Nothing more is sent for the open slot by this process; an earlier one may have."""
        self.again = False
        """Users are to be added up again for the open slot: what they contribute has changed."""
        self.unanswered = self.alarm = False

    def visited(self, row: int) -> None:
        """Slots go by the clock: a visit never leads to a release."""

    def withhold(self, row: int, part: object) -> None:
        """The bound is per slot, whatever was released of this user before."""

    def forget(self, row: int) -> int:
        """What waits for a cohort is added up again, unless that has it already."""
        self._change()
        return int(self.learner.counts[row]) if self.following else 0

    def due(self, moment: Moment | None) -> Begin | None:
        """One step of what the time calls for: charge what an earlier process may have sent, leave out
        what is over, begin the slot whose time has come."""
        if moment is None or not self.times:
            return None
        begun = bisect_right(self.times, moment.now)
        before = bisect_right(self.times, moment.began + self.plan.tolerance)
        before = max(before, min(self.claimed, begun))
        if self._unsettled(before):
            return partial(self._presume, before)
        over = bisect_right(self.times, moment.now - self.window)
        if self._unsettled(over):
            return partial(self._leave_out, over)
        if self.again:  # also in a pause, which must not tell that somebody was forgotten
            return self._add_up
        if self.paused or self.following >= begun:
            return None
        return partial(self._begin_slot, begun - 1)

    def _change(self) -> None:
        """Not all who were added up for a cohort are there any more, or the work on it was dropped."""
        self.again, self.prepared = self.in_cohort and self.open is not None and not self.void, None

    def _unsettled(self, slots: int) -> int:
        """How many of the first `slots` have neither left nor been left out."""
        unfinished = self.open is not None and self.open < slots
        return max(slots - self.following, 0) + unfinished

    def _presume(self, slots: int) -> None:
        """Charge slots in which an earlier process, or a copy of this store, may have sent."""
        self._charge(0, self._unsettled(slots))
        self._leave_out(slots)

    def _leave_out(self, slots: int) -> None:
        """These slots are over; an unfinished one among them is void."""
        self.following = max(self.following, slots)
        self._close()

    def _close(self) -> None:
        """Nothing is sent any more for the slot that is open."""
        self.open, self.prepared, self.again = None, None, False

    def _begin_slot(self, slot: int) -> Job:
        if not self.following <= slot < self.slots:
            raise PrivacyError(f"slot {slot} was used, or does not exist")
        self._close()
        self.following, self.open, self.void = slot + 1, slot, False
        self.basis = self.transcript
        return self._add_up()

    def _add_up(self) -> Job:
        """All users' contributions to the open slot, at the point that was told before it."""
        self.again, slot, point = False, self.open, self.basis.point
        assert slot is not None
        ask = {
            "slot": slot,
            "told": self.basis.told,
            "most": self.basis.most[slot],
            "steps": self.plan.steps,
            "count": self.plan.count,
        }
        return Job("slot", len(self.learner.counts), ask, {"root": point.root, "mean": point.mean})

    def finish(self, job: Job) -> None:
        """Everybody is in, unless the slot is over."""
        slot, sums = job.ask["slot"], job.total["sums"]
        if slot != self.open or self.void or self.again:
            return
        if self.in_cohort:
            self.prepared = Prepared(slot, sums)
        else:
            self._close()
            self._release(slot, job.ask["told"], sums)

    def _release(self, slot: int, told: int, sums: Counts) -> None:
        """Charge the ledger, then draw this server's share of noise, and send."""
        self._account()
        total = sums + draw_whole(self.noise, self.plan.entries, float(self.transcript.share))
        self.link.to_global(Release(slot, told, write_whole(total)))

    def sent(self, slot: int) -> None:
        """This server's member of a cohort sends what was prepared for a slot."""
        self._account()
        self.following = max(self.following, slot + 1)
        self._close()

    def _account(self) -> None:
        seen = int(self.learner.counts.sum())
        self._charge(max(seen - self.covered, 0), 1)
        self.covered, self.unanswered = seen, True

    def _charge(self, observations: int, releases: int) -> None:
        if not self.ledger.is_open(self.name):
            self.ledger.open(self.name, self.plan.mechanism, 1.0)
        self.ledger.release(self.name, observations, releases)

    def receive(self, message: Message) -> Job | None:
        match message:
            case PhaseStart() if self.times is None:
                return self._begin_slot(message.phase - 1) if message.phase else None
            case Released():
                self._take(message)
                return None
            case _:
                raise InvalidMessage(f"a local server does not take a {type(message).__name__}")

    def _take(self, message: Released) -> None:
        """Use the bytes of the point, and see whether a replay of the filter agrees with them."""
        most = MOST_MEMBERS if self.plan.secure else max(self.plan.members, MOST_MEMBERS)
        sound = 1 <= message.servers <= most and 1 <= message.share <= self.plan.deviation
        if not (sound and 0 <= message.slot < self.slots):
            raise InvalidMessage(f"slot {message.slot} of {message.servers} servers makes no sense")
        if message.slot < self.transcript.told:
            return  # told again, in a new session
        told = read_point(message.point, self.plan.dim)
        replayed = self.transcript.after(*msgspec.structs.astuple(message))
        own = replayed.population
        apart = max(float(np.abs(said - ours).max()) for said, ours in zip(told, own, strict=True))
        self.alarm |= not apart <= TOLERANCE
        self.transcript, self.servers, self.unanswered = replayed, message.servers, False
        users = equivalent_users(replayed.state)
        self.learner.absorb(PopulationNews(told.mean, told.covariance, message.servers - 1, users))

    def resume(self) -> None:
        """A slot whose window is not over is begun by the clock."""

    def start_session(self, beginning: Beginning) -> None:
        """Nothing is sent for an unfinished slot, and slots that the other side has heard of are used.

        The unfinished slot stays open until the clock says whether an earlier process may have sent it.
        A slot is taken for used once it has begun by this server's clock. In a cohort a session changes
        nothing: there the window rule does without. A global server that has lost releases tells those
        that it has: they are all that counts.
        """
        self.void = self.open is not None and not self.in_cohort
        self._change()
        used = 0 if self.in_cohort else min(beginning.used, self.slots)
        self.claimed = max(self.claimed, used)
        if self.times is None and self._unsettled(used):
            self._presume(used)
        if beginning.global_lost:
            self.transcript = self.first

    def status(self) -> Status:
        open_ = {self.name: self.ledger.streams[self.name]} if self.ledger.is_open(self.name) else {}
        used = self.following - (self.open is not None)
        alarm = ALARM if self.alarm else ""
        outlook = _outlook(self.following, self.times, self.plan.visits, alarm)
        return Status(self._waiting(), outlook, self.unanswered, used, open_)

    def _waiting(self) -> int:
        return int(self.learner.counts.sum()) - self.covered

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        heard = POPULATION if self.servers else None
        waiting = self._waiting()
        return [
            one if one.kind == TYPE else replace(one, cluster=heard, group=heard, waiting=waiting)
            for one in clusters
        ]

    def state(self) -> State:
        arrays, values = self.transcript.saved()
        numbers = [self.following, self.open, self.covered, self.servers, self.claimed]
        numbers.append(len(self.basis.releases))
        flags = [self.unanswered, self.alarm, self.void, self.again]
        return arrays, values | {"slots": numbers, "flags": flags}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.transcript = self.first.restored(arrays, values)
        *numbers, basis = values["slots"]
        self.following, self.open, self.covered, self.servers, self.claimed = numbers
        self.basis = self.first.restored(arrays, values, basis)
        self.unanswered, self.alarm, self.void, self.again = values["flags"]


def _outlook(
    used: int, times: tuple[float, ...] | None, visits: tuple[float, ...], alarm: str
) -> Outlook:
    if times == ():
        return Outlook(NOTHING)
    what, at = (VISITS_PER_USER, visits) if times is None else (TIME, times)
    return Outlook(what, 0.0, at[used] if used < len(at) else None, used, len(at), alarm)


class SlotsGlobal:
    """Sums what arrives in a slot, filters the sum, and tells everybody. It knows nothing else.

    Live, slot r closes at `closings[r]`, in seconds since 1970, with those that have arrived; in a
    simulation a phase is a slot.
    """

    gathers = True

    def __init__(
        self,
        servers: list[int],
        transcript: Transcript,
        link: Downlink,
        closings: tuple[float, ...] = (),
    ) -> None:
        self.servers, self.first, self.link = sorted(servers), transcript, link
        self.transcript, self.plan, self.closings = transcript, transcript.plan, closings
        self.slot = 0
        self.arrived: dict[int, Counts] = {}
        self.used: dict[int, int] = {}

    def invite(self, servers: int) -> None:
        self.servers = list(range(servers))

    def begin_phase(self, phase: int) -> None:
        """Call for slot phase − 1, and answer; phase 0 is no slot: servers learn at home only."""
        if phase:
            self.slot, self.arrived = phase - 1, {}
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        if phase:
            self._close(phase)

    def advance(self, overdue: bool) -> None:
        """Slots close by the clock: a message never leads to another."""

    def due(self, now: float) -> Callable[[], None] | None:
        over = bisect_right(self.closings, now)
        return partial(self._close, over) if over > self.slot else None

    def _close(self, following: int) -> None:
        """The open slot ends, and perhaps others in which nothing could arrive.

        A secure sum holds everybody, or there is none.
        """
        arrived, slot = self.arrived, self.slot
        self.slot, self.arrived = following, {}
        if not arrived or len(arrived) < (self.plan.members if self.plan.secure else 1):
            return
        total = np.sum([arrived[server] for server in sorted(arrived)], axis=0)
        members = len(arrived)
        self._learn(slot, members, self.plan.share(members), write_whole(total))

    def summed(self, slot: int, members: int, share: int, sums: bytes) -> None:
        """A cohort has added up what nobody sees alone."""
        self.slot = max(self.slot, slot + 1)
        self._learn(slot, members, share, sums)

    def _learn(self, slot: int, servers: int, share: int, sums: bytes) -> None:
        """A sum from which nothing follows is left out."""
        with suppress(InvalidMessage):
            self.transcript = self.transcript.after(slot, servers, share, sums)
            for server in self.servers:
                self.link.to_local(server, self.transcript.releases[-1])

    def start_session(self, server: int, beginning: Beginning) -> None:
        """Tell all releases again: this server may have missed some."""
        for told in self.transcript.releases:
            self.link.to_local(server, told)

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Release() if not (self.closings and self.plan.secure) and self._expects(
                server, message
            ):
                sums = read_whole(message.sums, self.plan.entries)
                check_range(self.plan, sums, 1, self.plan.share(len(self.servers)))
                if message.slot < self.used.get(server, 0):
                    raise InvalidMessage(f"server {server} has used slot {message.slot} before")
                self.used[server] = message.slot + 1
                if (message.slot, message.told) == (self.slot, self.transcript.told):
                    self.arrived[server] = sums  # what is late, or of another population, is lost
            case _:
                kind = type(message).__name__
                raise InvalidMessage(f"the global server does not take a {kind} from server {server}")

    def _expects(self, server: int, message: Release) -> bool:
        return server in self.servers and 0 <= message.slot < self.plan.releases

    def status(self) -> GlobalStatus:
        """How many observations there are is nowhere told."""
        return GlobalStatus(self.slot, 0)

    def account(self, server: int) -> Account:
        """Slots are paid one by one."""
        return Account(0, self.slot / self.plan.releases, self.used.get(server, 0))

    def overview(self) -> list[GlobalOverview]:
        members = [(server, POPULATION) for server in self.servers]
        return [GlobalOverview(0, members, POPULATION)] if self.transcript.releases else []

    def state(self) -> State:
        arrays, values = self.transcript.saved()
        arrived = {str(server): sums for server, sums in self.arrived.items()}
        used = {str(server): slot for server, slot in self.used.items()}
        return arrays | under("arrived.", arrived), values | {"slot": self.slot, "used": used}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.transcript, self.slot = self.first.restored(arrays, values), values["slot"]
        self.arrived = {int(server): sums for server, sums in inside("arrived.", arrays).items()}
        self.used = {int(server): slot for server, slot in values["used"].items()}
