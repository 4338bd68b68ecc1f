"""The global server's side of a cohort as a state machine: no input or output.

It is not trusted with anything but to finish. It stores Go before it sends it, and the sum before it
says so; single vectors are in its memory only, and nothing here shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from hashlib import sha256

import msgspec
import numpy as np

from fclub.cohorts.masks import (
    KEY,
    NONCE,
    AgreementKey,
    SignedKey,
    add_up,
    check_keys,
    check_signature,
    roster_hash,
)
from fclub.cohorts.member import context_of
from fclub.cohorts.members import MemberList
from fclub.cohorts.messages import (
    Abort,
    Call,
    Go,
    Join,
    Masked,
    Message,
    Outgoing,
    Ready,
    Roster,
    Step,
    Summed,
)
from fclub.cohorts.plan import CohortPlan, Share, largest_sum, share_of
from fclub.core.lattice import Whole
from fclub.errors import (
    CohortRefused,
    Conflict,
    InvalidJoin,
    InvalidMessage,
    InvalidSetting,
    NothingReady,
    OutsideWindow,
    Quarantined,
    SlotUsed,
    TooFewMembers,
)

KEPT = 100
"""Slots that operators can look back to."""


class Stage(StrEnum):
    """How far a slot has come."""

    CALLED = "called"
    GATHERED = "roster sent"
    GONE = "go"
    SUMMED = "summed"
    NOT_SUMMED = "not summed"


class Gone(msgspec.Struct, frozen=True):
    """A stored Go."""

    period: int
    slot: int
    roster: bytes
    names: tuple[str, ...]
    share: Share


class SlotView(msgspec.Struct, frozen=True):
    """What operators see of a slot: names, when each stage was reached, why it was not summed."""

    period: int
    slot: int
    stage: Stage
    times: dict[str, float]
    called: tuple[str, ...]
    joined: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    offences: dict[str, str] = {}
    reason: str = ""
    roster: bytes = b""


class HubRecord(msgspec.Struct, frozen=True):
    """All that the hub stores of cohorts."""

    gone: Gone | None = None
    total: bytes = b""
    """The last sum, as little-endian numbers of 64 bits."""
    left_out: tuple[str, ...] = ()
    """Members that were ready and did not send; an operator readmits them."""
    slots: tuple[SlotView, ...] = ()

    @property
    def over(self) -> list[SlotView]:
        ends = (Stage.SUMMED, Stage.NOT_SUMMED)
        return [view for view in self.slots if view.stage in ends]

    def verdict(self, roster: bytes) -> Message:
        """For who sends what is over."""
        summed = any(view.roster == roster and view.stage == Stage.SUMMED for view in self.slots)
        return Summed(roster) if summed else Abort(roster)


class Hub:
    """Call, wait, Roster, wait, Go, wait, sum. `tick` moves on when time has passed."""

    def __init__(
        self,
        members: MemberList,
        plan: CohortPlan,
        record: HubRecord,
        clock: Callable[[], float],
        entropy: Callable[[int], bytes],
        patience: float = 10.0,
    ) -> None:
        if members.federation != plan.federation:
            raise InvalidSetting(f"expected a plan of {members.federation}, got {plan.federation}")
        self.record = record
        self.members, self.plan = members, plan
        self.patience = patience
        self._clock, self._entropy = clock, entropy
        self._probe = AgreementKey(entropy(KEY))
        self._model: tuple[int, bytes] = (0, sha256(b"").digest())
        self._call: Call | None = None
        self._called_at = 0.0
        self._context = b""
        self._joins: dict[str, SignedKey] = {}
        self._roster: tuple[SignedKey, ...] = ()
        self._rho = b""
        self._gathered_at = 0.0
        self._ready: set[str] = set()
        self._masked: dict[str, bytes] = {}
        self._absent: set[str] = set()

    def hold_model(self, version: int, data: bytes) -> None:
        """The released model, in the bytes that members got."""
        self._model = version, sha256(data).digest()

    def set_members(self, members: MemberList) -> None:
        """A new epoch, between slots."""
        if self._call is not None:
            raise CohortRefused("expected a change of the member list between slots")
        held = self.members
        if members.federation != held.federation or members.epoch < held.epoch:
            raise InvalidSetting(
                f"expected a later member list of {held.federation} than epoch {held.epoch}, got "
                f"epoch {members.epoch} of {members.federation}"
            )
        self.members = members

    def readmit(self, name: str) -> Step:
        """An operator lets a member take part again."""
        kept = tuple(other for other in self.record.left_out if other != name)
        return self._store(left_out=kept)

    def call(self, slot: int) -> Step:
        """Begin a slot with everybody who is not left out."""
        now, plan = self._clock(), self.plan
        if not 0 <= slot < len(plan.times):
            raise InvalidSetting(f"expected a slot from 0 to {len(plan.times) - 1}", slot)
        if any(view.period == plan.period and view.slot >= slot for view in self.record.over):
            raise SlotUsed(f"slot {slot} of period {plan.period} is over")
        if self._call is not None or self.record.gone is not None:
            raise CohortRefused("expected the slot before to be summed or given up first")
        if not plan.times[slot] <= now < plan.latest_go(slot):
            raise OutsideWindow(
                f"slot {slot} is called from {plan.times[slot]} to {plan.latest_go(slot)}"
            )
        self._absent = set()
        self._show(SlotView(plan.period, slot, Stage.CALLED, {}, self._expected()))
        return self._begin(slot)

    def receive(self, sender: str, message: Message) -> Step:
        """One message of a member, whose name the connection vouches for."""
        if sender in self.record.left_out:
            raise Quarantined(f"{sender} was ready and did not send; an operator readmits it")
        match message:
            case Join():
                return self._join(sender, message)
            case Ready():
                return self._take_ready(sender, message)
            case Masked():
                return self._take_masked(sender, message)
        raise InvalidMessage(f"expected a message of a member, got {type(message).__name__}")

    def tick(self) -> Step:
        """What follows from the time alone."""
        now, call, gone = self._clock(), self._call, self.record.gone
        if gone is not None:
            over = now >= self.plan.gives_up(gone.slot)
            return self._lose(gone) if over else Step()
        if call is None:
            return Step()
        if now >= self.plan.latest_go(call.slot):
            return self._not_summed()
        if not self._roster:
            due = self._called_at + self.plan.delay + self.patience
            return self._gather(call) if now >= due else Step()
        return self._retry(call) if now >= self._gathered_at + self.patience else Step()

    def start_again(self) -> Step:
        """After a restart: a stored Go is said again, and members send what they have sent."""
        gone = self.record.gone
        return Step(None, _to(gone.names, Go(gone.roster))) if gone is not None else Step()

    @property
    def total(self) -> Whole:
        """The last sum."""
        return np.frombuffer(self.record.total, dtype="<i8").astype(np.int64)

    @property
    def view(self) -> SlotView | None:
        return self.record.slots[-1] if self.record.slots else None

    def _expected(self) -> tuple[str, ...]:
        away = self._absent | set(self.record.left_out)
        return tuple(entry.name for entry in self.members.members if entry.name not in away)

    def _begin(self, slot: int) -> Step:
        version, model = self._model
        call = Call(self.plan.period, slot, version, self._entropy(NONCE))
        self._call, self._called_at = call, self._clock()
        self._context = context_of(self.members, self.plan, call, model).digest()
        self._joins, self._roster, self._rho = {}, (), b""
        self._ready, self._masked = set(), {}
        self._advance(Stage.CALLED, called=self._expected(), joined=(), ready=())
        return Step(None, _to(self._expected(), call))

    def _join(self, sender: str, message: Join) -> Step:
        call = self._call
        if call is None or self._roster:
            raise NothingReady(f"no Call waits for a Join of {sender}")
        join = message.signed
        try:
            if join.name != sender:
                raise InvalidJoin(f"{sender} has sent a Join of {join.name}")
            others = (other for other in self._joins.values() if other.name != sender)
            check_keys([*(other for other in others if other.key == join.key), join])
            check_signature(self.members.entry(sender).public, self._context, join)
            self._probe.shared(sender, join.key)
        except CohortRefused as offence:
            view = self.record.slots[-1]
            self._show(msgspec.structs.replace(view, offences=view.offences | {sender: str(offence)}))
            raise
        self._joins[sender] = join
        self._advance(Stage.CALLED, joined=_in_order(self._joins))
        return self._gather(call) if set(self._joins) >= set(self._expected()) else Step()

    def _gather(self, call: Call) -> Step:
        """Send the roster if enough are there; otherwise wait on, and say how many are missing."""
        joins = tuple(self._joins[name] for name in _in_order(self._joins))
        organisations = [self.members.entry(join.name).organisation for join in joins]
        try:
            share_of(self.plan, call.slot, organisations)
        except TooFewMembers as few:
            self._advance(Stage.CALLED, reason=str(few))
            return Step()
        self._roster, self._rho = joins, roster_hash(self._context, joins)
        self._gathered_at = self._clock()
        self._advance(Stage.GATHERED, reason="")
        return Step(None, _to([join.name for join in joins], Roster(joins)))

    def _take_ready(self, sender: str, message: Ready) -> Step:
        call, names = self._call, tuple(join.name for join in self._roster)
        if call is None or message.roster != self._rho or sender not in names:
            raise NothingReady(f"{sender} is ready under another roster than the one that was sent")
        self._ready.add(sender)
        self._advance(Stage.GATHERED, ready=_in_order(self._ready))
        if len(self._ready) < len(names):
            return Step()
        if self._clock() >= self.plan.latest_go(call.slot):
            return self._not_summed()
        organisations = [self.members.entry(name).organisation for name in names]
        share = share_of(self.plan, call.slot, organisations)
        gone = Gone(call.period, call.slot, self._rho, names, share)
        self._call = None
        self._advance(Stage.GONE, roster=self._rho)
        return self._store(gone=gone)._replace(messages=_to(names, Go(self._rho)))

    def _take_masked(self, sender: str, message: Masked) -> Step:
        gone = self.record.gone
        if gone is None or message.roster != gone.roster or sender not in gone.names:
            return Step(None, (Outgoing(sender, self.record.verdict(message.roster)),))
        if len(message.values) != 8 * self.plan.entries:
            raise InvalidMessage(
                f"{sender}: expected {8 * self.plan.entries} bytes, got {len(message.values)}"
            )
        if self._masked.get(sender, message.values) != message.values:
            raise Conflict(f"{sender} has sent other bytes for the same slot; the first are kept")
        self._masked[sender] = message.values
        return self._sum(gone) if len(self._masked) == len(gone.names) else Step()

    def _sum(self, gone: Gone) -> Step:
        total = add_up(self._masked.values(), self.plan.entries)
        self._masked = {}
        bound = largest_sum(self.plan, gone.slot, gone.share)
        if int(total.max()) > bound or int(total.min()) < -bound:
            reason = f"the sum is beyond {bound}: a member has sent rubbish, and nobody can tell who"
            self._advance(Stage.NOT_SUMMED, reason=reason)
            return self._end(gone, Abort(gone.roster))
        self._advance(Stage.SUMMED)
        return self._end(gone, Summed(gone.roster), total=total.astype("<i8").tobytes())

    def _lose(self, gone: Gone) -> Step:
        missing = tuple(name for name in gone.names if name not in self._masked)
        self._masked = {}
        reason = (
            f"ready, but sent nothing: {', '.join(missing)}; left out until an operator readmits them"
        )
        self._advance(Stage.NOT_SUMMED, missing=missing, reason=reason)
        left_out = _in_order({*self.record.left_out, *missing})
        return self._end(gone, Abort(gone.roster), left_out=left_out)

    def _not_summed(self) -> Step:
        """The window is nearly over and nobody was told to go: free for all."""
        reason = self.record.slots[-1].reason
        reason = reason or f"not ready in time: {', '.join(self._unready()) or 'nobody'}"
        self._advance(Stage.NOT_SUMMED, missing=self._unready(), reason=reason)
        self._call = None
        return self._store()._replace(messages=_to(self._asked(), Abort(self._rho)))

    def _retry(self, call: Call) -> Step:
        """Again, without those who are missing: with fresh keys and fresh noise."""
        rho = self._rho
        names = [join.name for join in self._roster]
        self._absent |= set(self._unready())
        again = self._begin(call.slot)
        return again._replace(messages=(*_to(names, Abort(rho)), *again.messages))

    def _asked(self) -> tuple[str, ...]:
        return tuple(join.name for join in self._roster) or self._expected()

    def _unready(self) -> tuple[str, ...]:
        found = self._ready if self._roster else set(self._joins)
        return tuple(name for name in self._asked() if name not in found)

    def _end(self, gone: Gone, message: Message, **changes: object) -> Step:
        return self._store(gone=None, **changes)._replace(messages=_to(gone.names, message))

    def _advance(self, stage: Stage, **changes: object) -> None:
        view = self.record.slots[-1]
        times = view.times if stage in view.times else view.times | {str(stage): self._clock()}
        self._show(msgspec.structs.replace(view, stage=stage, times=times, **changes))

    def _show(self, view: SlotView) -> None:
        kept = self.record.slots
        if kept and (kept[-1].period, kept[-1].slot) == (view.period, view.slot):
            kept = kept[:-1]
        self.record = msgspec.structs.replace(self.record, slots=(*kept, view)[-KEPT:])

    def _store(self, **changes: object) -> Step:
        self.record = msgspec.structs.replace(self.record, **changes)
        return Step(self.record)


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=str.encode))


def _to(names: Iterable[str], message: Message) -> tuple[Outgoing, ...]:
    return tuple(Outgoing(name, message) for name in names)
