"""A local server that releases whole users: types learned at home, helped by what all have released."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import numpy as np

from fclub.core.packing import inside, under
from fclub.core.plus.beliefs import Beliefs, TypeRules
from fclub.core.plus.type_filter import FilterRules, first_types
from fclub.core.plus.type_sums import TypeSums
from fclub.core.types import Vector
from fclub.errors import InvalidMessage
from fclub.privacy.ledger import Stream
from fclub.privacy.sensitivity import Domain
from fclub.protocol.link import Uplink
from fclub.protocol.messages import MAX_COUNT, Message, PhaseStart, triangle_of
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.slots import SlotReleases, period_end, period_start
from fclub.protocol.plus.type_local import PART, TypeLocal
from fclub.protocol.plus.type_messages import ReadTypes, Release, Released, read_types
from fclub.protocol.seam import NOTHING, Beginning, Outlook, Slotted, State, nothing

HALF = 0.5
"""A server listens once releases have told this part of the types: below, a released centre is more its
public seed than what anybody's users say of it."""


class UserLocal(TypeLocal):
    """Without `slots` it keeps to itself.

    Its types are its own: it learns them from its users, and from what the other servers' releases say
    of the same types, which counts like so many users of theirs. With `released_only` it learns
    nothing from its users: each of them is served from its own data and released types.

    A slot is due at a number of visits. Live, a visit is counted when somebody arrives, since whether
    a reward comes is a secret; in a simulation every visit brings one.
    """

    def __init__(
        self,
        crowd: Crowd,
        rules: TypeRules,
        exploration: float,
        public: FilterRules,
        slots: SlotReleases | None,
        released_only: bool,
        domain: Domain,
        link: Uplink,
        clock: GeometricClock | None = None,
        kept: float = 1.0,
    ) -> None:
        super().__init__(crowd, rules, exploration, False, domain, link, clock, kept)
        self.public, self.slots, self.released_only = public, slots, released_only
        if slots is not None:
            for _ in range(len(crowd.squares)):
                slots.add_user()
        self.arrivals = self._postponed = 0
        if released_only:
            self._believe(self._released_beliefs(None))

    @property
    def visits(self) -> int:
        return self.observations if self.clock is None else self.arrivals

    @property
    def slotted(self) -> Slotted | None:
        return self

    def add_user(self) -> int:
        if self.slots is not None:
            self.slots.add_user()
        return super().add_user()

    def observe(self, row: int, x: Vector, y: float) -> None:
        if self.slots is not None:
            self.slots.visit(row, self.users)
        super().observe(row, x, y)

    @property
    def by_user(self) -> tuple[str, ...]:
        own = () if self.slots is None else self.slots.by_user
        return super().by_user + tuple(f"slots.{name}" for name in own)

    def arrive(self) -> None:
        self.arrivals += 1

    def due_slot(self) -> int | None:
        return None if self.slots is None else self.slots.due(self.visits, len(self.counts))

    def release(self, slot: int) -> None:
        """In parts, if they are wanted; else everybody at once."""
        assert self.slots is not None
        if self.in_parts:
            self.slots.begin_slot(slot, len(self.counts), self.visits)
        else:
            self._send(self.slots.release(slot, self.users, self.visits))

    def _send(self, message: Release) -> None:
        self.unanswered = True
        self.link.to_global(message)

    @property
    def busy(self) -> bool:
        """A slot waits until it may leave."""
        slots = self.slots
        due = slots is not None and slots.open is not None and not (slots.whole and self.paused)
        return due or super().busy

    def part(self) -> Callable[[], None]:
        """Slots come before phases, which can wait."""
        if self.slots is None or self.slots.open is None or (self.slots.whole and self.paused):
            return super().part()
        if not self.slots.whole:
            return self.slots.add(self.users, PART)
        self._send(self.slots.finish())
        return nothing

    def slot_number(self, slot: int) -> int:
        assert self.slots is not None
        return self.slots.number(slot)

    @property
    def unfinished(self) -> int:
        now = None if self.slots is None else self.slots.open
        return 0 if now is None else self.slot_number(now.slot)

    @property
    def used(self) -> int:
        return 0 if self.slots is None else self.slots.used

    def forgo(self, used: int) -> None:
        if self.slots is not None:
            self.slots.forgo(used, self.users, self.visits)

    def period_start(self, now: float) -> int:
        return 0 if self.slots is None else period_start(self.slots.plan, now)

    def period_end(self, now: float) -> int:
        return 0 if self.slots is None else period_end(self.slots.plan, self.used, now)

    def begin(self, beginning: Beginning) -> None:
        """Slots that either side knows to be used are; if the global server has lost them, all may be.

        Only a process that ran before that loss knows better.
        """
        super().begin(beginning)
        if self.slots is not None:
            self.slots.abandon()
        self.forgo(beginning.used)
        if beginning.global_lost and not beginning.sure and self.slots is not None:
            self.slots.forgo_period()

    def forget(self, row: int) -> int:
        """Later slots do without this user; a name that returns is in each slot once, as all are.

        Sums that hold the user are dropped; the next phase makes new ones.
        """
        released = 0
        if self.slots is not None:
            self.slots.forget(row)
            released = int(self.counts[row]) if self.slots.covered else 0
        super().forget(row)
        self.sums = TypeSums.zeros(self.rules.types, self.rules.dim)
        return released

    def receive(self, message: Message) -> None:
        match message:
            case PhaseStart() if self.clock is None:
                self._play(message.phase)
            case Released() if self.slots is not None:
                self._take(message)
                if self._postponed:
                    self._begin_phase(self._postponed)
            case _:
                raise InvalidMessage(f"a server of users does not take a {type(message).__name__}")

    def _play(self, phase: int) -> None:
        """A phase of a simulation: learn every second time, after the answer if a slot is due."""
        slot = self.due_slot()
        if phase % 2 == 0 and (self.has_begun or not self.phase):
            self._postponed = phase
        if slot is not None:
            self.release(slot)
        elif self._postponed:
            self._begin_phase(phase)

    def _begin_phase(self, phase: int) -> None:
        self.phase, self._postponed = phase, 0
        if not self.released_only:
            super()._begin_phase(phase)

    def _take(self, message: Released) -> None:
        assert self.slots is not None
        if message.version < 0 or message.types != self.rules.types:
            raise InvalidMessage(f"{message.types} types of version {message.version}")
        if not (1 <= message.users <= MAX_COUNT and 0 <= message.visits <= MAX_COUNT):
            raise InvalidMessage(f"{message.users} users with {message.visits} visits make no sense")
        types = read_types(message.values, self.public)
        self.slots.adopt(message.version, types.centres, types.shares)
        others = max(0.0, 1.0 - len(self.counts) / message.users)
        self.others = self._as_sums(types, others, message)
        listens = self.released_only or bool(self.others.visits.any())
        self.sharing, self.unanswered = listens * max(message.servers - 1, 0), False
        if self.released_only:
            self._believe(self._released_beliefs(types, message.users))

    def _as_sums(self, types: ReadTypes, others: float, message: Released) -> TypeSums:
        """The sums by type that would say the same of the centres, for the other servers' part.

        They say nothing while less than `HALF` is told: a server's own types are all alike for long,
        and what noise there is in releases would decide how they part. How common a type is the server
        learns from its own users: released counts are too noisy.
        """
        d, sums = self.rules.dim, TypeSums.zeros(self.rules.types, self.rules.dim)
        rows, columns = triangle_of(d)
        twice = np.where(rows == columns, 1.0, 2.0)
        scale = np.sqrt(np.outer(self.public.spread, self.public.spread))
        eigenvalues, U = np.linalg.eigh(np.linalg.inv(types.covariances) * scale - np.eye(d))
        gained = np.maximum(eigenvalues, 0.0)
        if types.shares @ (gained / (1.0 + gained)).mean(axis=1) < HALF:
            return sums
        learned = others * (U * gained[:, None, :]) @ U.transpose(0, 2, 1) / scale
        sums.rows[:, :d] = np.einsum("kij,kj->ki", learned, types.centres)
        sums.rows[:, d:] = learned[:, rows, columns] * twice
        sums.visits[:] = others * message.visits * types.shares
        return sums

    def _released_beliefs(self, types: ReadTypes | None, users: int = 0) -> Beliefs:
        """What all releases say, and public constants: nothing of this server's own."""
        rules, first = self.public, first_types(self.public)
        spread = np.diag(rules.spread)
        if types is None:
            types = ReadTypes(first.centres, np.tile(spread, (rules.types, 1, 1)), first.shares)
        return Beliefs(
            mean=np.zeros(rules.dim),
            covariance=spread,
            centres=types.centres,
            uncertainty=types.covariances,
            users=users * types.shares,
            scalars=np.array([rules.variance, log(rules.within), 0.0]),
        )

    @property
    def waiting(self) -> int:
        return self.visits - (0 if self.slots is None else self.slots.covered)

    @property
    def ids(self) -> list[int]:
        used = self.slots is not None and self.slots.streams()
        return [*range(self.rules.types)] if used else []

    @property
    def outlook(self) -> Outlook:
        if self.slots is None:
            return Outlook(NOTHING)
        return self.slots.outlook(self.visits, len(self.counts))

    def streams(self) -> dict[str, Stream]:
        return {} if self.slots is None else self.slots.streams()

    def state(self) -> State:
        arrays, values = super().state()
        values["arrivals"] = self.arrivals
        if self.slots is not None:
            own, numbers = self.slots.state()
            arrays |= under("slots.", own)
            values |= numbers
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        super().restore(arrays, values)
        self.arrivals = int(values["arrivals"])
        if self.slots is not None:
            self.slots.restore(inside("slots.", arrays), values)
