"""A member of a cohort as a state machine: no input or output, and no randomness of its own.

What is stored is a `MemberRecord`; keys and what is ready live in memory only. A `Step` is stored
before its messages leave. docs/specification/cohorts.md says why in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from fclub.cohorts.masks import (
    KEY,
    NONCE,
    AgreementKey,
    Context,
    SignedKey,
    add_masks,
    check_keys,
    check_signature,
    roster_hash,
    sign_key,
    to_bytes,
)
from fclub.cohorts.members import Identity, MemberList
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
from fclub.cohorts.plan import Charge, CohortPlan, Share, draw_share, presumed_charge, share_of
from fclub.core.lattice import Whole
from fclub.errors import (
    CohortRefused,
    InvalidMessage,
    InvalidRoster,
    InvalidSetting,
    NothingReady,
    OtherTerms,
    OutOfRange,
    OutsideWindow,
    SlotUsed,
)
from fclub.privacy.noise import NoiseSource

ATTEMPTS = 8
"""Joins of one process in a slot; more Calls than that cost processor time and nothing else."""


class State(StrEnum):
    IDLE = "idle"
    JOINED = "joined"
    READY = "ready"


class Unconfirmed(msgspec.Struct, frozen=True):
    """A slot of which the hub has not said that it is summed; its bytes are sent as they are."""

    period: int
    slot: int
    message: Masked


class MemberRecord(msgspec.Struct, frozen=True):
    """All that a member stores, replaced as a whole in one transaction."""

    highest: float = 0.0
    """The highest time seen."""
    members: MemberList | None = None
    accepted: float = 0.0
    """When the member list was taken over."""
    plans: tuple[CohortPlan, ...] = ()
    charges: tuple[Charge, ...] = ()
    outbox: tuple[Unconfirmed, ...] = ()


class _Joined(NamedTuple):
    call: Call
    plan: CohortPlan
    context: bytes
    key: AgreementKey
    join: SignedKey


class _Ready(NamedTuple):
    call: Call
    plan: CohortPlan
    roster: bytes
    share: Share
    values: bytes


class _Prepared(NamedTuple):
    period: int
    slot: int
    vector: Whole


class Member:
    """One process of a member. `begin` comes first; its step is stored before anything else happens."""

    def __init__(
        self,
        identity: Identity,
        record: MemberRecord,
        clock: Callable[[], float],
        entropy: Callable[[int], bytes],
        noise: NoiseSource,
    ) -> None:
        self.record = record
        self.began: float | None = None
        self.refusal: str = ""
        self._identity = identity
        self._clock = clock
        self._entropy = entropy
        self._noise = noise
        self._prepared: _Prepared | None = None
        self._joined: _Joined | None = None
        self._ready: _Ready | None = None
        self._model: tuple[int, bytes] = (0, sha256(b"").digest())
        self._attempts: dict[tuple[int, int], int] = {}
        self._highest = record.highest

    @property
    def state(self) -> State:
        if self._ready is not None:
            return State.READY
        return State.JOINED if self._joined is not None else State.IDLE

    @property
    def joined(self) -> int | None:
        """The slot whose roster it waits for."""
        return None if self._joined is None else self._joined.call.slot

    def now(self) -> float:
        """The machine's time, or the highest that was seen: it never goes back."""
        self._highest = max(self._highest, self._clock())
        return self._highest

    def begin(self) -> Step:
        """Close every slot that has begun; charge those in which an earlier process may have sent."""
        self.began = now = self.now()
        known = {(charge.period, charge.slot) for charge in self.record.charges}
        presumed = [
            presumed_charge(plan, slot)
            for plan in self.record.plans
            for slot, time in enumerate(plan.times)
            if time <= now + plan.tolerance
            and self.record.highest <= time + plan.window + plan.tolerance
            and (plan.period, slot) not in known
        ]
        return self._store(charges=(*self.record.charges, *presumed))

    def accept(self, members: MemberList) -> Step:
        """Take over a member list that a person has accepted; what was under way goes, free."""
        held = self.record.members
        if held is not None and members.federation != held.federation:
            raise InvalidSetting(
                f"expected a member list of {held.federation}, got one of {members.federation}"
            )
        if held is not None and members.epoch <= held.epoch and members != held:
            raise InvalidSetting(
                f"expected an epoch above {held.epoch}, got {members.epoch}: lists never go back"
            )
        if members == held:
            return Step()
        self._drop()
        return self._store(members=members, accepted=self.now())

    def adopt(self, plan: CohortPlan) -> Step:
        """Take over a plan; one plan lasts a whole period.

        A later one is taken over before it begins. A store without any may come late: slots that have
        begun are closed and count as sent, since it may stand in for one that is lost.
        """
        plans, now = self.record.plans, self.now()
        if plan in plans:
            return Step()
        if plans and (plan.period <= plans[-1].period or plan.times[0] < plans[-1].end):
            raise InvalidSetting(
                f"expected a plan of a period after {plans[-1].period} that begins when that one has "
                f"ended, got period {plan.period}"
            )
        begun = [slot for slot, time in enumerate(plan.times) if time <= now + plan.tolerance]
        if plans and begun:
            raise InvalidSetting("expected a plan that has not begun; agree on one that begins later")
        presumed = [presumed_charge(plan, slot) for slot in begun]
        return self._store(plans=(*plans, plan), charges=(*self.record.charges, *presumed))

    def hold_model(self, version: int, data: bytes) -> None:
        """The bytes of the released model as they have arrived."""
        self._model = version, sha256(data).digest()

    def prepare(self, period: int, slot: int, vector: Whole) -> None:
        """The sum over this member's users for a slot, computed ahead, without noise."""
        plan = self._plan(period, slot)
        whole = np.array(vector, dtype=np.int64, copy=True)
        if vector.dtype != np.int64 or whole.shape != (plan.entries,):
            raise InvalidSetting(f"expected {plan.entries} whole numbers of 64 bits", vector.shape)
        bound = plan.bound(slot)
        if int(whole.max()) > bound or int(whole.min()) < -bound:
            raise OutOfRange(
                f"a sum over users is beyond {bound}: more users than the plan has room for"
            )
        self._prepared = _Prepared(period, slot, whole)

    def discard(self) -> bool:
        """A user in the sum was forgotten: it is void. False if it is ready, and counts as released."""
        in_time = self._ready is None
        self._prepared = None
        return in_time

    def receive(self, message: Message) -> Step:
        """One message of the hub. A refusal raises, sends nothing and is told to this operator only."""
        if self.began is None:
            raise InvalidSetting("expected begin() to be stored before the first message")
        self.tick()
        try:
            return self._take(message)
        except CohortRefused as refusal:
            self.refusal = str(refusal)
            raise

    def _take(self, message: Message) -> Step:
        match message:
            case Call():
                return self._call(message)
            case Roster():
                return self._roster(message)
            case Go():
                return self._go(message)
            case Abort():
                return self._abort(message)
            case Summed():
                return self._confirm(message.roster)
        raise InvalidMessage(f"expected a message of the hub, got {type(message).__name__}")

    def tick(self) -> None:
        """Delete what the end of its window has overtaken."""
        current = self._ready or self._joined
        if (
            current is not None
            and self.now() >= current.plan.times[current.call.slot] + current.plan.window
        ):
            self._drop()

    def resend(self) -> tuple[Outgoing, ...]:
        """What is not confirmed, the same bytes as before."""
        return tuple(Outgoing("", waiting.message) for waiting in self.record.outbox)

    def _call(self, call: Call) -> Step:
        plan = self._plan(call.period, call.slot)
        self._check_window(plan, call.slot)
        version, model = self._model
        if call.version != version:
            raise OtherTerms(f"expected version {version} of the released model, got {call.version}")
        if len(call.nonce) != NONCE:
            raise InvalidMessage(f"expected a nonce of {NONCE} bytes, got {len(call.nonce)}")
        self._vector(call)
        attempt = self._attempts.get((call.period, call.slot), 0) + 1
        if attempt > ATTEMPTS:
            raise CohortRefused(
                f"expected at most {ATTEMPTS} Calls in slot {call.slot}; this is one more"
            )
        self._attempts = {(call.period, call.slot): attempt}
        self._drop()
        context = self._context(plan, call, model)
        key = AgreementKey(self._entropy(KEY))
        join = sign_key(self._identity.secret, context, self._identity.name, key.public)
        self._joined = _Joined(call, plan, context, key, join)
        return Step(None, (Outgoing("", Join(*join), plan.beat(call.slot, self.now())),))

    def _roster(self, roster: Roster) -> Step:
        joined = self._joined
        if joined is None:
            raise NothingReady("no Join of this process waits for a roster")
        vector = self._vector(joined.call)
        plan, slot = joined.plan, joined.call.slot
        self._check_window(plan, slot)
        share = share_of(plan, slot, check_roster(roster, joined, self._members()))
        rho = roster_hash(joined.context, roster.joins)
        self._joined = None
        noised = vector + draw_share(self._noise, plan.entries, share)
        masked = add_masks(noised, self._identity.name, joined.key, roster.joins, rho)
        self._ready = _Ready(joined.call, plan, rho, share, to_bytes(masked))
        return Step(None, (Outgoing("", Ready(rho)),))

    def _go(self, go: Go) -> Step:
        for waiting in self.record.outbox:
            if waiting.message.roster == go.roster:
                return Step(None, (Outgoing("", waiting.message),))
        ready = self._ready
        if ready is None or ready.roster != go.roster:
            raise NothingReady(
                "nothing is ready under this roster; the slot is lost if others have sent"
            )
        period, slot = ready.call.period, ready.call.slot
        self._check_window(ready.plan, slot)
        message = Masked(ready.roster, ready.values)
        charge = Charge(period, slot, *ready.share, ready.roster)
        self._drop()
        self._prepared = None
        step = self._store(
            charges=(*self.record.charges, charge),
            outbox=(*self.record.outbox, Unconfirmed(period, slot, message)),
        )
        return step._replace(messages=(Outgoing("", message),))

    def _abort(self, abort: Abort) -> Step:
        current = self._ready.roster if self._ready is not None else b""
        if abort.roster == current:
            self._drop()
        return self._confirm(abort.roster)

    def _confirm(self, roster: bytes) -> Step:
        """Nothing of this roster is sent any more; the charge stays."""
        kept = tuple(waiting for waiting in self.record.outbox if waiting.message.roster != roster)
        return self._store(outbox=kept) if len(kept) < len(self.record.outbox) else Step()

    def _check_window(self, plan: CohortPlan, slot: int) -> None:
        """The rule by which a slot holds a member's users once, whoever restores what."""
        used = [charge.slot for charge in self.record.charges if charge.period == plan.period]
        if used and slot <= max(used):
            raise SlotUsed(f"expected a slot after {max(used)} of period {plan.period}, got {slot}")
        begins, now = plan.times[slot], self.now()
        if not begins <= now < begins + plan.window:
            raise OutsideWindow(
                f"slot {slot} is open from {begins} to {begins + plan.window} by this member's clock, "
                f"which shows {now:.0f}"
            )
        for what, since in (("process", self.began), ("member list", self.record.accepted)):
            if since is None or since + plan.tolerance >= begins:
                raise OutsideWindow(
                    f"this {what} is not {plan.tolerance} s older than slot {slot}: "
                    "it takes part from the next one on"
                )

    def _vector(self, call: Call) -> Whole:
        """The sum over users of this slot and no other."""
        prepared = self._prepared
        if prepared is None or (prepared.period, prepared.slot) != (call.period, call.slot):
            raise NothingReady(f"no sum over users was computed ahead for slot {call.slot}")
        return prepared.vector

    def _plan(self, period: int, slot: int) -> CohortPlan:
        for plan in self.record.plans:
            if plan.period == period and 0 <= slot < len(plan.times):
                return plan
        raise OtherTerms(f"no accepted plan has slot {slot} of period {period}")

    def _members(self) -> MemberList:
        if self.record.members is None:
            raise OtherTerms("no member list was accepted here")
        return self.record.members

    def _context(self, plan: CohortPlan, call: Call, model: bytes) -> bytes:
        members = self._members()
        own = members.entry(self._identity.name)
        if own != self._identity.entry:
            raise OtherTerms(
                f"the member list has another key or organisation for {own.name} than this identity: "
                "propose a list with the new one"
            )
        if plan.federation != members.federation:
            raise OtherTerms(f"expected a plan of {members.federation}, got one of {plan.federation}")
        return context_of(members, plan, call, model).digest()

    def _drop(self) -> None:
        """Forget key, masks and noise: a further attempt has fresh ones."""
        self._joined = self._ready = None

    def _store(self, **changes: object) -> Step:
        self.record = msgspec.structs.replace(self.record, highest=self.now(), **changes)
        return Step(self.record)


def check_roster(roster: Roster, joined: _Joined, members: MemberList) -> list[str]:
    """The organisations of its members, by this member's own list."""
    names = [join.name.encode() for join in roster.joins]
    if any(one >= other for one, other in pairwise(names)):
        raise InvalidRoster("expected names in strictly ascending order in a roster")
    if joined.join not in roster.joins:
        raise InvalidRoster("expected this process's own Join in the roster, byte for byte")
    check_keys(roster.joins)
    organisations = []
    for join in roster.joins:
        entry = members.entry(join.name)
        check_signature(entry.public, joined.context, join)
        organisations.append(entry.organisation)
    return organisations


def context_of(members: MemberList, plan: CohortPlan, call: Call, model: bytes) -> Context:
    """What members and hub hash, each from its own list, plan and model."""
    return Context(
        federation=members.federation,
        members=members.hash,
        epoch=members.epoch,
        plan=plan.hash,
        period=call.period,
        slot=call.slot,
        nonce=call.nonce,
        version=call.version,
        model=model,
        colluders=plan.colluders,
        cap=plan.cap,
    )
