"""A node's part in secure sums: messages of a cohort in and out, what is stored before they leave.

`Member` and `Hub` do no input or output. Here their steps are stored with the node's other changes, and
their messages are letters: each is said again until it is answered, so none needs a number. What a step
computes may run in another thread, one at a time; everything else is done where the node is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from fclub.cohorts.hub import Hub, HubRecord, Stage
from fclub.cohorts.member import Member, MemberRecord, State
from fclub.cohorts.members import MemberList
from fclub.cohorts.messages import Call, Message, Outgoing, Roster, Step, Summed, decode, encode
from fclub.cohorts.plan import CohortPlan
from fclub.errors import CohortRefused, FclubError, InvalidSetting, NoiseFailed, OutOfRange
from fclub.protocol.exchanges.slots import Prepared, SlotsGlobal, SlotsLocal
from fclub.service.link.channel import GLOBAL, VERSION, Cohort, encode_frame
from fclub.service.nodes.node import Journal

RECORD = "cohort"
"""Under which name a store keeps what a member or the hub has to know again."""

MOST_WAITING = 4_096
"""Messages that wait to be looked at; more are left alone, and said again."""

AGAIN_SECONDS = 1.0
"""How often what was not answered is said again."""

NOTICE_SECONDS = 60.0
"""How often at most the log tells why something was refused."""

MOST_A_SECOND = 64
"""Messages that a member takes; more are left alone, and said again."""

LAST_PART = 0.25
"""Of a window; what arrives in it is not taken, since users could not be added up again in time."""

Compute = Callable[[], Step]


class Side(ABC):
    """What member and hub have in common. `next` and `done` alternate; `next` gives what to compute."""

    def __init__(self, name: str, journal: Journal, clock: Callable[[], float]) -> None:
        self.name, self.journal, self.clock = name, journal, clock
        self.waiting: deque[tuple[str, Message]] = deque()
        self.notice = ""
        """Why the last message was refused."""
        self._later: list[Outgoing] = []
        self._accepted: MemberList | None = None
        self._again = self._noticed = 0.0

    def receive(self, sender: str, payload: bytes) -> None:
        message = decode(payload)
        if len(self.waiting) < MOST_WAITING:
            self.waiting.append((sender, message))

    def accept(self, members: MemberList) -> None:
        """Take over a list that people have accepted, as soon as nothing is being computed."""
        self._accepted = members

    @abstractmethod
    def next(self) -> Compute | None:
        """What is to be computed now, if anything."""

    @abstractmethod
    def _stored(self, record: Any) -> None:
        """A step has changed the record; note what follows for the node."""

    def done(self, step: Step) -> None:
        """Store what a step changes, and send what is due after that is stored."""
        if step.change is not None:
            self._stored(step.change)
            self.journal.changes.note(RECORD, msgspec.json.encode(step.change).decode())
        self._later += step.messages
        self._send_due()

    def _send_due(self) -> None:
        now = self.clock()
        for out in [out for out in self._later if out.due <= now]:
            self._later.remove(out)
            letter = encode_frame(Cohort(VERSION, self.name, encode(out.message)))
            self.journal.changes.letters.append((out.to or GLOBAL, letter))

    def _time_to_repeat(self) -> bool:
        """Whether it is time to say again what was not answered."""
        now = self.clock()
        due = now >= self._again
        if due:
            self._again = now + AGAIN_SECONDS
        return due

    def _refused(self, compute: Compute) -> Step:
        """A refusal sends nothing. What cannot draw noise must not go on."""
        try:
            return compute()
        except NoiseFailed:
            raise
        except FclubError as refusal:
            self.notice = str(refusal)
            return Step()

    def _tell(self) -> None:
        """An operator reads in the log why something was refused."""
        now = self.clock()
        if self.notice and now >= self._noticed + NOTICE_SECONDS:
            self.journal.changes.notices.append(f"secure sums: {self.notice}")
            self.notice, self._noticed = "", now

    def run(self) -> None:
        """Everything that there is to do, here and now."""
        while (compute := self.next()) is not None:
            self.done(compute())


class MemberSide(Side):
    """Takes the sums that its exchange has computed for a slot, and what the hub says."""

    def __init__(
        self,
        name: str,
        journal: Journal,
        exchange: Callable[[], SlotsLocal],
        member: Member,
        plan: CohortPlan,
        sent: Callable[[int], None],
    ) -> None:
        super().__init__(name, journal, member.now)
        self.member, self.plan = member, plan
        self._exchange, self._sent = exchange, sent
        self._given: Prepared | None = None
        self._second = 0, 0
        self._charges = len(member.record.charges)

    def receive(self, sender: str, payload: bytes) -> None:
        """What is dropped follows from when it comes, and not from what it would have to wait for."""
        message, second = decode(payload), int(self.member.now())
        self._second = second, 1 + (self._second[1] if self._second[0] == second else 0)
        if self._second[1] <= MOST_A_SECOND and not self._is_late(message):
            self.waiting.append((sender, message))

    def _is_late(self, message: Message) -> bool:
        """The window of a Call's slot is nearly over, or that of the slot that has begun last."""
        now, times = self.member.now(), self.plan.times
        match message:
            case Call(slot=slot) if 0 <= slot < len(times):
                pass
            case Roster():
                slot = bisect_right(times, now) - 1
            case _:
                return False
        return slot >= 0 and now >= times[slot] + (1.0 - LAST_PART) * self.plan.window

    def next(self) -> Compute | None:
        """Messages are looked at in the order in which they came, whatever they wait for."""
        self.member.tick()
        if self._accepted is not None and self.member.state is not State.READY:
            self.done(self._refused(partial(self.member.accept, self._accepted)))
            self._accepted = None
        self._take_over()
        self._tell()
        if self._time_to_repeat():
            self.done(Step(None, self.member.resend()))
        self._send_due()
        heard = [one for one in self.waiting if isinstance(one[1], Summed)]  # these wait for nothing
        head = heard[0] if heard else self.waiting[0] if self.waiting else None
        if head is None or self._too_early(head[1]):
            return None
        self.waiting.remove(head)
        return partial(self._refused, partial(self.member.receive, head[1]))

    def _take_over(self) -> None:
        """The released model as it was told, and the sum of the slot that is open."""
        exchange = self._exchange()
        basis = exchange.transcript if exchange.open is None else exchange.basis
        self.member.hold_model(basis.told, basis.digest)
        if exchange.prepared is self._given:
            return
        self._given = prepared = exchange.prepared
        self.member.discard()
        if prepared is not None:
            try:
                self.member.prepare(self.plan.period, prepared.slot, prepared.sums)
            except OutOfRange as refusal:  # the slot is left out
                self.notice = str(refusal)

    def _too_early(self, message: Message) -> bool:
        """A slot has begun, here or at the hub by a clock that differs as much as clocks may, and its
        users are still being added up."""
        exchange = self._exchange()
        match message:
            case Call(period=self.plan.period, slot=slot) if 0 <= slot < len(self.plan.times):
                pass
            case Roster() if self.member.joined is not None:
                slot = self.member.joined
            case _:
                return False
        if slot >= exchange.following:
            return self.plan.times[slot] <= self.member.now() + self.plan.tolerance
        return slot == exchange.open and exchange.prepared is None and not exchange.void

    def _stored(self, record: MemberRecord) -> None:
        """Whoever was told to go has sent: a charge that was not presumed."""
        known, self._charges = self._charges, len(record.charges)
        for charge in record.charges[known:]:
            if not charge.presumed:
                self._sent(charge.slot)


class HubSide(Side):
    """Calls for slots when their time has come, and gives sums to its exchange."""

    def __init__(
        self,
        journal: Journal,
        exchange: Callable[[], SlotsGlobal],
        hub: Hub,
        clock: Callable[[], float],
        summed: Callable[[int, int, int, bytes], None],
    ) -> None:
        super().__init__(GLOBAL, journal, clock)
        self.hub = hub
        self._exchange, self.summed = exchange, summed
        self._record = hub.record
        self._readmitted: list[str] = []

    def next(self) -> Compute | None:
        exchange = self._exchange()
        self.hub.hold_model(exchange.transcript.told, exchange.transcript.digest)
        self._tell()
        while self._readmitted:
            self.done(self.hub.readmit(self._readmitted.pop()))
        self._send_due()
        if self._time_to_repeat():
            self.done(self.hub.start_again())
            self.done(self.hub.tick())
            self._call()
        if self.waiting:
            sender, message = self.waiting.popleft()
            return partial(self._refused, partial(self.hub.receive, sender, message))
        return None

    def _call(self) -> None:
        """Call for the slot whose time has come, once; between slots follow the member list."""
        if self._accepted is not None:
            with suppress(CohortRefused):  # later: a slot is under way
                self._follow(self._accepted)
                self._accepted = None
        slot = bisect_right(self.hub.plan.times, self.clock()) - 1
        view = self.hub.view
        known = view is not None and (view.period, view.slot) >= (self.hub.plan.period, slot)
        if slot >= 0 and not known:
            self.done(self._refused(partial(self.hub.call, slot)))

    def _follow(self, members: MemberList) -> None:
        try:
            self.hub.set_members(members)
        except InvalidSetting as refusal:
            self.notice = str(refusal)

    def readmit(self, name: str) -> None:
        """An operator lets a member take part again that was ready and did not send.

        That is between two steps: the hub may be computing one in another thread.
        """
        if name in self.hub.record.left_out:
            self._readmitted.append(name)

    def _stored(self, record: HubRecord) -> None:
        gone, self._record = self._record.gone, record
        if gone is not None and record.gone is None and record.slots[-1].stage == Stage.SUMMED:
            self.summed(gone.slot, len(gone.names), gone.share.deviation, record.total)
