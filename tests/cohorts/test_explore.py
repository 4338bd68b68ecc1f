"""No hub, crash, restore or copy leads to a second vector, a second use of a key, a missing charge."""

from __future__ import annotations

import random
from hashlib import sha256

import numpy as np
import pytest
from tests.cohorts.explore import (
    FREE,
    PRESUMED,
    PUNCTUAL,
    RULES,
    RUNS,
    Machine,
    Process,
    Roster,
    Rules,
    Store,
    explore,
    initial,
    may_act,
    steps,
)
from tests.cohorts.explore import Member as Model
from tests.cohorts.lab import Entropy, Recorded, identity_of, list_of, plan_of

from fclub.cohorts.masks import AgreementKey, sign_key
from fclub.cohorts.member import Member, MemberRecord, context_of
from fclub.cohorts.messages import Abort, Call, Go, Join, Message, Ready
from fclub.cohorts.messages import Roster as RosterMessage
from fclub.core.lattice import Whole
from fclub.errors import CohortRefused

UNIT = 100
"""Seconds of the real clock in a step of the model's."""


def test_nothing_is_found_with_a_few_faults() -> None:
    assert explore(1, 1, 1).violations == frozenset()
    assert explore(2, 1, 1, PUNCTUAL, most_joins=1).violations == frozenset()


@pytest.mark.parametrize(
    ("rules", "violation"),
    [
        (RULES._replace(tolerance=0), "a slot is sent twice"),
        (PUNCTUAL._replace(tolerance=-1), "a slot is sent twice"),
        (PUNCTUAL._replace(began=False, presume=False), "a slot is sent twice"),
        (PUNCTUAL._replace(presume=False), "a sum that is not charged"),
        (PUNCTUAL._replace(used=False), "a slot is sent twice"),
        (PUNCTUAL._replace(spent=False), "two vectors under one key"),
        (PUNCTUAL._replace(early_copies=True), "a slot is sent twice"),
    ],
    ids=["tolerance", "window", "no window", "no presumed charges", "used slots", "keys", "copies"],
)
def test_a_weaker_rule_is_found(rules: Rules, violation: str) -> None:
    """The window weakened by one step of the clock, and each of the other rules."""
    assert violation in explore(1, 1, 1, rules).violations


def test_a_stored_ready_is_found() -> None:
    """A copy sends what was ready, while the first process goes on to another roster."""
    rules = PUNCTUAL._replace(stored_ready=True, began=False, presume=False)
    assert "a slot is sent twice" in explore(1, 1, 1, rules).violations


LONG = "3 members, 2 slots, 1 fault"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if name != LONG])
def test_nothing_is_found(name: str) -> None:
    found = RUNS[name].explore()
    assert found.violations == frozenset()
    assert found.states > 100_000


@pytest.mark.long
def test_nothing_is_found_with_three_members_and_two_slots() -> None:
    found = RUNS[LONG].explore()
    assert found.violations == frozenset()
    assert found.states > 1_000_000


ACTIONS = ["crash", "backup", "list", "abort", *["call"] * 3, *["roster"] * 3, *["go"] * 2]


class Real:
    """A real member, driven as the model is."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.lag = 0
        self.identities = [identity_of(name) for name in "abcd"]
        self.plan = plan_of(times=(200, 500), window=UNIT, tolerance=UNIT)
        self.processes = 0
        self.store = self.backup = MemberRecord()
        self.rosters: dict[bytes, Roster] = {}
        self.sent = [FREE, FREE]
        self.joins = 0
        self.call: Call | None = None
        self.join: Join | None = None
        self.member: Member | None = None
        member = self.start(self.store)
        self.keep(member.accept(list_of(self.identities)).change)
        self.keep(member.adopt(self.plan).change)
        self.backup = self.store

    def clock(self) -> float:
        return float(UNIT * (self.now - self.lag))

    def keep(self, change: MemberRecord | None) -> None:
        if change is not None:
            self.store = change

    def start(self, record: MemberRecord) -> Member:
        self.processes += 1
        entropy, noise = Entropy(self.processes), Recorded(self.processes)
        self.member = Member(self.identities[0], record, self.clock, entropy, noise)
        self.keep(self.member.begin().change)
        return self.member

    def take(self, message: Message) -> bool:
        """Whether the member did what it was told."""
        assert self.member is not None
        try:
            step = self.member.receive(message)
        except CohortRefused:
            return False
        self.keep(step.change)
        if step.messages and isinstance(step.messages[0].message, Join):
            self.join = step.messages[0].message
        return True

    def roster(self, label: int) -> RosterMessage:
        """Of four members, or of three."""
        assert self.call is not None
        assert self.join is not None
        assert self.store.members is not None
        context = context_of(self.store.members, self.plan, self.call, sha256(b"").digest()).digest()
        joins = [self.join.signed]
        for identity in self.identities[1 : 4 - label]:
            key = AgreementKey(sha256(f"{identity.name} {label}".encode()).digest()).public
            joins.append(sign_key(identity.secret, context, identity.name, key))
        return RosterMessage(tuple(joins))

    def model_of(self, record: MemberRecord) -> Store:
        books = [FREE, FREE]
        for charge in record.charges:
            books[charge.slot] = PRESUMED if charge.presumed else self.rosters[charge.roster]
        epoch = record.members.epoch if record.members is not None else 0
        return Store(int(record.highest) // UNIT, epoch, int(record.accepted) // UNIT, tuple(books))

    def model(self) -> Model:
        process = None
        if self.member is not None:
            self.member.tick()
            assert self.member.began is not None
            joined, ready = self.member._joined, self.member._ready
            process = Process(
                int(self.member.began) // UNIT,
                self.lag,
                None if joined is None else (joined.call.slot, self.joins - 1),
                None if ready is None else self.rosters[ready.roster],
            )
        machine = Machine(self.model_of(self.store), process)
        return Model((machine,), self.model_of(self.backup), tuple(self.sent), self.joins)


def settled(model: Model, now: int) -> Model:
    """Without what the end of a window has overtaken."""
    (machine,) = model.machines
    process = machine.process
    if process is None:
        return model
    time = max(machine.store.highest, now - process.lag)
    if process.join is not None and time > RULES.times[process.join[0]]:
        process = process._replace(join=None)
    if process.ready is not None and time > RULES.times[process.ready[0]]:
        process = process._replace(ready=None)
    return model._replace(machines=(machine._replace(process=process),))


def one_step(real: Real, before: Model) -> tuple[bool, bool]:
    """Something happens: whether the model allows it, and whether the member did it."""
    (machine,) = before.machines
    process = machine.process
    if real.member is None:
        real.lag = real.rng.choice([0, 1])
        real.start(real.rng.choice([real.store, real.backup]))
        return True, True
    assert process is not None
    match real.rng.choice(ACTIONS):
        case "crash":
            real.member, real.join = None, None
        case "backup":
            real.backup = real.store
        case "list":
            real.keep(real.member.accept(list_of(real.identities, epoch=2)).change)
        case "call":
            slot = real.rng.choice([0, 1])
            real.member.prepare(1, slot, plan_vector())
            call = Call(1, slot, 0, bytes([real.joins % 256]) * 16)
            done = real.take(call)
            if done:
                real.call, real.joins = call, real.joins + 1
            return may_act(machine, slot, real.now, RULES), done
        case "roster" if real.join is not None and real.call is not None:
            label = real.rng.choice([0, 1])
            expected = process.join is not None and may_act(machine, process.join[0], real.now, RULES)
            slot, number = real.call.slot, real.joins - 1
            done = real.take(real.roster(label))
            if done:
                ready = real.member._ready
                assert ready is not None
                real.rosters[ready.roster] = (slot, number, label)
            return expected, done
        case "go":
            roster = real.member._ready.roster if real.member._ready is not None else b"none"
            allowed = process.ready is not None and may_act(machine, process.ready[0], real.now, RULES)
            done = real.take(Go(roster))
            if done:
                real.sent[real.rosters[roster][0]] = real.rosters[roster]
            return allowed, done
        case "abort":
            roster = real.member._ready.roster if real.member._ready is not None else b""
            real.take(Abort(roster))
    return True, True


def plan_vector() -> Whole:
    return np.arange(5)


@pytest.mark.parametrize("seed", range(20))
def test_the_model_does_what_the_member_does(seed: int) -> None:
    real = Real(seed)
    before = real.model()
    assert before == initial(2)
    for _ in range(60):
        if real.rng.random() < 0.12 and real.now < 7:
            real.now += 1
            before = settled(before, real.now)
            assert real.model() == before
            continue
        allowed, done = one_step(real, before)
        assert allowed == done
        after = real.model()
        following = {settled(other, real.now) for other, _ in only(before, real.now)}
        assert after == before or after in following
        assert done or after == before
        before = after


def only(model: Model, now: int) -> list[tuple[Model, int]]:
    """What follows without a second copy."""
    found = steps(model, now, RULES, most_joins=10**6)
    return [(other, cost) for other, cost in found if len(other.machines) == 1]


def test_ready_is_said_once_for_a_join() -> None:
    real = Real(0)
    real.now = 2
    assert real.member is not None
    real.member.prepare(1, 0, plan_vector())
    real.call = Call(1, 0, 0, b"n" * 16)
    assert real.take(real.call)
    first, second = real.roster(0), real.roster(1)
    assert isinstance(real.member.receive(first).messages[0].message, Ready)
    assert not real.take(second)
