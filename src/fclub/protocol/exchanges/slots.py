"""Releases of the population in the slots of a plan: whole numbers up, one population down.

In a slot every server adds up what its users contribute at the public point, adds its share of noise,
and sends it. The global server sums, filters, and answers with the sum and the next public point, which
everybody checks by replaying the filter. No message tells a number of users or visits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fclub.core.packing import flatten, inside, rebuild, under
from fclub.core.population.contribution import PublicPoint
from fclub.core.population.filter import FilterState, Slot, first_state, learn, pace_of, smat, svec
from fclub.core.population.model import Population, PublicModel, clip_norm, public_point
from fclub.core.types import Counts
from fclub.errors import InvalidMessage, PrivacyError
from fclub.privacy.ledger import Ledger
from fclub.privacy.noise import NoiseSource
from fclub.privacy.plan import Plan
from fclub.privacy.slots import draw_whole
from fclub.protocol.interfaces.exchange import Account, Beginning, GlobalStatus, Status
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Job, Learner, PopulationNews, State
from fclub.protocol.interfaces.overview import (
    VISITS_PER_USER,
    GlobalOverview,
    LocalOverview,
    Outlook,
)
from fclub.protocol.link import Downlink, Uplink
from fclub.protocol.messages import Count, Decoder, Message, PhaseStart

POPULATION = 0
"""The id and the global cluster of everybody."""

TOLERANCE = 1e-6
"""Two computers that filter the same releases agree up to this, in units of the public start."""

LARGEST = 2**62
"""Sums of whole numbers beyond this could wrap."""


class Release(Message, frozen=True, array_like=True, tag="population"):
    """What all users of a server contribute to a slot, with noise: whole numbers of 8 bytes."""

    slot: int
    sums: bytes

    def count(self) -> Count:
        return Count(uploads=1)


class Released(Message, frozen=True, array_like=True, tag="released"):
    """The sum over so many servers, and mean and covariance of the population from the next slot on."""

    slot: int
    servers: int
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
    """The inverse of `write_point`; what is not finite or not positive definite is refused."""
    size = dim + dim * (dim + 1) // 2
    if len(data) != 8 * size:
        raise InvalidMessage(f"expected a population of {size} numbers, got {len(data)} bytes")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise InvalidMessage("a population that is not finite")
    return Population(values[:dim], smat(values[dim:], dim))


class Transcript:
    """All releases so far, as the filter knows them; it never changes."""

    def __init__(self, plan: Plan, model: PublicModel, state: FilterState | None = None) -> None:
        self.plan, self.model = plan, model
        self.state = first_state(model.dim) if state is None else state

    @lru_cache(maxsize=8)  # noqa: B019 - as below
    def most(self, slot: int) -> float:
        """C_r: it follows from the plan and from the pace of visits in earlier releases."""
        return clip_norm(self.model, self.plan.visits[slot] * pace_of(self.state), self.plan.past)

    @cached_property
    def share(self) -> float:
        """Noise that each member adds, in lattice steps."""
        return self.plan.share(self.plan.members)

    @cached_property
    def point(self) -> PublicPoint:
        """Where contributions to the next slot are taken."""
        return public_point(self.model, self.population)

    @lru_cache(maxsize=8)  # noqa: B019 - servers of one process replay the same releases
    def after(self, slot: int, servers: int, sums: bytes) -> Transcript:
        """With one release more."""
        step = self.most(slot) / self.plan.steps
        noise = step * self.plan.total(servers)
        told = Slot(self.plan.visits[slot], self.most(slot), noise, self.plan.past)
        values = step * read_whole(sums, self.plan.entries).astype(np.float64)
        return Transcript(self.plan, self.model, learn(self.state, told, values, self.model))

    @property
    def population(self) -> Population:
        return self.state.population

    def saved(self) -> State:
        values = {"held": float(self.state.held), "surprise": float(self.state.surprise)}
        return flatten(self.state), values

    def restored(self, arrays: dict[str, Any], values: dict[str, Any]) -> Transcript:
        return Transcript(self.plan, self.model, rebuild(self.state, arrays)._replace(**values))


class SlotsLocal:
    """Releases in the slots of its plan, each once; what it computes with was released before."""

    supports = frozenset({FORGET, REPLACE})
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
    ) -> None:
        self.learner, self.transcript, self.plan = learner, transcript, transcript.plan
        self.noise, self.ledger, self.name, self.link = noise, ledger, name, link
        self.following = self.covered = self.servers = 0
        self.unanswered = False

    def visited(self, row: int) -> None:
        """Slots go by the clock: a visit never leads to a release."""

    def withhold(self, row: int, part: object) -> None:
        """The bound is per slot, whatever was released of this user before."""

    def forget(self, row: int) -> int:
        return int(self.learner.counts[row]) if self.following else 0

    def due(self, now: float | None) -> None:
        """In a simulation the global server calls for slots."""

    def _begin_slot(self, slot: int) -> Job:
        if not self.following <= slot < self.plan.releases:
            raise PrivacyError(f"slot {slot} was used, or does not exist")
        self.following = slot + 1
        point = self.transcript.point
        ask = {
            "slot": slot,
            "most": self.transcript.most(slot),
            "steps": self.plan.steps,
            "count": self.plan.count,
        }
        return Job("slot", len(self.learner.counts), ask, {"root": point.root, "mean": point.mean})

    def finish(self, job: Job) -> None:
        """Everybody is in: charge the ledger, then draw this server's share of noise, and send."""
        if not self.ledger.is_open(self.name):
            self.ledger.open(self.name, self.plan.mechanism, 1.0)
        seen = int(self.learner.counts.sum())
        self.ledger.release(self.name, max(seen - self.covered, 0))
        self.covered, self.unanswered = seen, True
        total = job.total["sums"] + draw_whole(self.noise, self.plan.entries, self.transcript.share)
        self.link.to_global(Release(job.ask["slot"], write_whole(total)))

    def receive(self, message: Message) -> Job | None:
        match message:
            case PhaseStart():
                return self._begin_slot(message.phase - 1)
            case Released():
                self._take(message)
                return None
            case _:
                raise InvalidMessage(f"a local server does not take a {type(message).__name__}")

    def _take(self, message: Released) -> None:
        """Use the bytes of the point if a replay of the filter agrees with them."""
        if not (0 <= message.slot < self.plan.releases and message.servers >= 1):
            raise InvalidMessage(f"slot {message.slot} of {message.servers} servers makes no sense")
        told = read_point(message.point, self.plan.dim)
        replayed = self.transcript.after(message.slot, message.servers, message.sums)
        for said, own in zip(told, replayed.population, strict=True):
            if np.abs(said - own).max() > TOLERANCE:
                raise InvalidMessage("the population that was told does not follow from the releases")
        self.transcript, self.servers, self.unanswered = replayed, message.servers, False
        self.learner.absorb(PopulationNews(told.mean, told.covariance, message.servers - 1))

    def resume(self) -> None:
        """A slot that was due meanwhile is left out."""

    def start_session(self, beginning: Beginning) -> None:
        """Slots that either side knows to be used are."""
        self.following = max(self.following, beginning.used)

    def status(self) -> Status:
        used, plan = self.following, self.plan
        at = plan.visits[used] if used < plan.releases else None
        outlook = Outlook(VISITS_PER_USER, 0.0, at, used, plan.releases)
        open_ = {self.name: self.ledger.streams[self.name]} if self.ledger.is_open(self.name) else {}
        return Status(self._waiting(), outlook, self.unanswered, used, open_)

    def _waiting(self) -> int:
        return int(self.learner.counts.sum()) - self.covered

    def describe(self, clusters: list[LocalOverview]) -> list[LocalOverview]:
        heard = POPULATION if self.servers else None
        waiting = self._waiting()
        return [replace(one, cluster=heard, group=heard, waiting=waiting) for one in clusters]

    def state(self) -> State:
        arrays, values = self.transcript.saved()
        numbers = [self.following, self.covered, self.servers, int(self.unanswered)]
        return under("filter.", arrays), {"filter": values, "slots": numbers}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.transcript = self.transcript.restored(inside("filter.", arrays), values["filter"])
        self.following, self.covered, self.servers, unanswered = values["slots"]
        self.unanswered = bool(unanswered)


class SlotsGlobal:
    """Sums what arrives in a slot, filters the sum, and tells everybody. It knows nothing else."""

    gathers = True

    def __init__(self, servers: list[int], transcript: Transcript, link: Downlink) -> None:
        self.servers, self.transcript, self.link = sorted(servers), transcript, link
        self.plan = transcript.plan
        self.slot = -1
        self.arrived: dict[int, Counts] = {}
        self.summed = 0

    def invite(self, servers: int) -> None:
        self.servers = list(range(servers))

    def begin_phase(self, phase: int) -> None:
        """Call for slot phase − 1, and answer."""
        self.slot, self.arrived = phase - 1, {}
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        self.advance(overdue=True)

    def advance(self, overdue: bool) -> None:
        """Close the slot: a secure sum holds everybody, or there is none."""
        enough = len(self.arrived) >= (self.plan.members if self.plan.secure else 1)
        if not self.arrived or not enough:
            return
        total = np.sum([self.arrived[server] for server in sorted(self.arrived)], axis=0)
        sums, self.summed = write_whole(total), len(self.arrived)
        self.transcript = self.transcript.after(self.slot, self.summed, sums)
        told = Released(self.slot, self.summed, sums, write_point(self.transcript.population))
        self.arrived = {}
        for server in self.servers:
            self.link.to_local(server, told)

    def start_session(self, server: int, beginning: Beginning) -> None:
        """Slots are used once, in whichever session."""

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Release() if server in self.servers:
                sums = read_whole(message.sums, self.plan.entries)
                if message.slot != self.slot or server in self.arrived:
                    raise InvalidMessage(f"slot {message.slot} is not open for server {server}")
                if np.abs(sums).max() > LARGEST // max(len(self.servers), 1):
                    raise InvalidMessage("whole numbers that no users can have contributed")
                self.arrived[server] = sums
            case _:
                kind = type(message).__name__
                raise InvalidMessage(f"the global server does not take a {kind} from server {server}")

    def status(self) -> GlobalStatus:
        """How many observations there are is nowhere told."""
        return GlobalStatus(self.slot + 1, 0)

    def account(self, server: int) -> Account:
        """Slots are paid one by one."""
        used = self.slot + 1
        return Account(0, used / self.plan.releases, used)

    def limit(self, clusters: int) -> None:
        """The slots are limit enough."""

    def overview(self) -> list[GlobalOverview]:
        members = [(server, POPULATION) for server in self.servers]
        return [GlobalOverview(0, members, POPULATION)] if self.summed else []

    def state(self) -> State:
        arrays, values = self.transcript.saved()
        numbers = [self.slot, self.summed]
        return under("filter.", arrays), {"filter": values, "slots": numbers}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        """A slot that was open when this was saved is lost, at no cost but its own."""
        self.transcript = self.transcript.restored(inside("filter.", arrays), values["filter"])
        self.slot, self.summed = values["slots"]
        self.arrived = {}
