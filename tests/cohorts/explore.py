"""Every state that members can reach under an arbitrary hub, with crashes, restores and copies.

A small model of `Member`, which `test_explore` compares with the real one step by step. Time is one
number; slot r is open at `times[r]` only. The hub may call, show one of two rosters, say Go, abort,
all at any time; a roster is a label together with the member's own Join, since nothing else of it
decides what the member does next. So are its other members: they may be anybody. A backup may be taken
at any time and put back after any crash, a copy of a store may start beside the first process, and the
clock of a process may be behind. Members differ in nothing, so states are sorted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from time import process_time
from typing import NamedTuple

Roster = tuple[int, int, int]
"""Slot, number of the own Join, label."""

PRESUMED: Roster = (-1, -1, -1)
FREE: Roster = (-2, -2, -2)


class Rules(NamedTuple):
    """The rules as they are; each weakening gives one of them up."""

    times: tuple[int, ...] = (2, 5)
    tolerance: int = 1
    presume: bool = True
    began: bool = True
    used: bool = True
    stored_ready: bool = False
    spent: bool = True
    early_copies: bool = False
    labels: int = 2
    """Rosters that the hub has for one Join."""
    lag: int = 1
    """How far the clock of a process may be behind."""


RULES = Rules()
PUNCTUAL = Rules(times=(1, 3), tolerance=0, lag=0)
"""Clocks that agree: fewer times, so that more members fit."""


class Store(NamedTuple):
    """`books` has for every slot what was sent, or that it is presumed."""

    highest: int
    epoch: int
    accepted: int
    books: tuple[Roster, ...]
    ready: Roster = FREE


class Process(NamedTuple):
    """`join` is the Join that waits for a roster, `ready` what waits for Go."""

    began: int
    lag: int
    join: tuple[int, int] | None = None
    ready: Roster | None = None


class Machine(NamedTuple):
    store: Store
    process: Process | None


class Member(NamedTuple):
    """`sent` is what the adversary has: a roster for every slot. `joins` counts Joins."""

    machines: tuple[Machine, ...]
    backup: Store
    sent: tuple[Roster, ...]
    joins: int = 0


class Violation(Exception):
    """A property that does not hold."""


def initial(slots: int) -> Member:
    store = Store(0, 1, 0, (FREE,) * slots)
    return Member((Machine(store, Process(0, 0)),), store, (FREE,) * slots)


def clock(machine: Machine, lag: int, now: int) -> int:
    return max(machine.store.highest, now - lag)


def may_act(machine: Machine, slot: int, now: int, rules: Rules) -> bool:
    """The window."""
    process, store = machine.process, machine.store
    assert process is not None
    time = clock(machine, process.lag, now)
    if rules.used and any(entry != FREE for entry in store.books[slot:]):
        return False
    if rules.began and process.began + rules.tolerance >= rules.times[slot]:
        return False
    return time == rules.times[slot] and store.accepted + rules.tolerance < rules.times[slot]


def started(machine: Machine, lag: int, now: int, rules: Rules) -> Machine:
    """A new process on this store."""
    time = clock(machine, lag, now)
    store = machine.store
    books = list(store.books)
    for slot, entry in enumerate(books):
        begins = rules.times[slot]
        unseen = store.highest <= begins + 1 + rules.tolerance
        if rules.presume and entry == FREE and begins <= time + rules.tolerance and unseen:
            books[slot] = PRESUMED
    process = Process(time, lag)
    if rules.stored_ready and store.ready != FREE:
        process = process._replace(ready=store.ready)
    return Machine(store._replace(highest=time, books=tuple(books)), process)


def steps(member: Member, now: int, rules: Rules, most_joins: int) -> Iterator[tuple[Member, int]]:
    """What can happen to a member next, and how many faults that is."""
    for place, machine in enumerate(member.machines):

        def put(changed: Machine, place: int = place) -> Member:
            machines = list(member.machines)
            machines[place] = changed
            return member._replace(machines=tuple(machines))

        store, process = machine
        if store != member.backup:
            yield member._replace(backup=store), 1
        if process is None:
            for kept in {store, member.backup}:
                for lag in range(rules.lag + 1):
                    fresh = started(Machine(kept, None), lag, now, rules)
                    yield put(fresh), 0
            continue
        yield put(Machine(store, None)), 1
        if store.epoch == 1:
            time = clock(machine, process.lag, now)
            listed = store._replace(highest=time, epoch=2, accepted=time)
            yield put(Machine(listed, process._replace(join=None, ready=None))), 0
        yield from hub_steps(member, machine, put, now, rules, most_joins)
    running = [machine.process for machine in member.machines if machine.process is not None]
    if len(member.machines) == 1 and running:
        for kept in {member.machines[0].store, member.backup}:
            for lag in range(rules.lag + 1):
                copy = started(Machine(kept, None), lag, now, rules)
                yield member._replace(machines=(*member.machines, copy)), 1


def hub_steps(
    member: Member, machine: Machine, put: object, now: int, rules: Rules, most_joins: int
) -> Iterator[tuple[Member, int]]:
    """Call, Roster, Go and Abort."""
    assert callable(put)
    store, process = machine
    assert process is not None
    if process.join is not None or process.ready is not None:
        yield put(Machine(store._replace(ready=FREE), process._replace(join=None, ready=None))), 0
    for slot in range(len(store.books)):
        if member.joins < most_joins and may_act(machine, slot, now, rules):
            joined = process._replace(join=(slot, member.joins), ready=None)
            yield put(Machine(store._replace(ready=FREE), joined))._replace(joins=member.joins + 1), 0
    if process.join is not None and may_act(machine, process.join[0], now, rules):
        if process.ready is not None and process.ready[:2] == process.join:
            raise Violation("two vectors under one key")
        for label in range(rules.labels):
            roster = (*process.join, label)
            ready = process._replace(join=None if rules.spent else process.join, ready=roster)
            kept = store._replace(ready=roster) if rules.stored_ready else store
            yield put(Machine(kept, ready)), 0
    if process.ready is not None and may_act(machine, process.ready[0], now, rules):
        roster = process.ready
        books, sent = list(store.books), list(member.sent)
        if sent[roster[0]] not in (FREE, roster):
            raise Violation("a slot is sent twice")
        books[roster[0]] = sent[roster[0]] = roster
        time = clock(machine, process.lag, now)
        stored = store._replace(highest=time, books=tuple(books), ready=FREE)
        went = put(Machine(stored, process._replace(join=None, ready=None)))
        yield went._replace(sent=tuple(sent)), 0


def is_charged(member: Member) -> bool:
    """Whether every process has a charge for all that has left under its name."""
    for slot, roster in enumerate(member.sent):
        for store, process in member.machines:
            if roster != FREE and process is not None and store.books[slot] == FREE:
                return False
    return True


def later(member: Member, now: int, rules: Rules) -> list[Member]:
    """Time goes on. A slot begins with one copy of every member, by the premise: either."""
    if now not in rules.times or len(member.machines) == 1 or rules.early_copies:
        return [member]
    return [member._replace(machines=(machine,)) for machine in member.machines]


class Found(NamedTuple):
    """`local` states of one member, `states` of all members together, and what does not hold."""

    states: int
    local: int
    violations: frozenset[str]


class Space:
    """States of members by number, with what can follow each: computed once, checked once."""

    def __init__(self, rules: Rules, most_joins: int) -> None:
        self.rules, self.most_joins = rules, most_joins
        self.members: list[Member] = []
        self.numbers: dict[Member, int] = {}
        self.violations: set[str] = set()
        self.moves: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.waits: dict[tuple[int, int], list[int]] = {}

    def number(self, member: Member) -> int:
        if member not in self.numbers:
            if not is_charged(member):
                self.violations.add("a sum that is not charged")
            self.numbers[member] = len(self.members)
            self.members.append(member)
        return self.numbers[member]

    def next(self, number: int, now: int) -> list[tuple[int, int]]:
        if (number, now) not in self.moves:
            found = set()
            try:
                for other, cost in steps(self.members[number], now, self.rules, self.most_joins):
                    found.add((self.number(other), cost))
            except Violation as violation:
                self.violations.add(str(violation))
            self.moves[number, now] = list(found)
        return self.moves[number, now]

    def wait(self, number: int, now: int) -> list[int]:
        if (number, now) not in self.waits:
            found = later(self.members[number], now, self.rules)
            self.waits[number, now] = [self.number(other) for other in found]
        return self.waits[number, now]


def explore(
    members: int, slots: int, faults: int | None, rules: Rules = RULES, most_joins: int = 2
) -> Found:
    """All states with so many crashes, backups and copies, or with any number of them."""
    space = Space(rules, most_joins)
    states = _explore(space, members, slots, faults)
    return Found(states, len(space.members), frozenset(space.violations))


def _explore(space: Space, members: int, slots: int, faults: int | None) -> int:
    """A state is the time, the faults so far and the members' numbers, sorted."""
    first = (0, 0, *[space.number(initial(slots))] * members)
    known, todo = {first}, [first]
    while todo:
        now, spent, *numbers = todo.pop()
        found = []
        if now <= space.rules.times[slots - 1]:
            for after in product(*(space.wait(number, now + 1) for number in numbers)):
                found.append((now + 1, spent, *sorted(after)))
        for place, number in enumerate(numbers):
            if place and numbers[place - 1] == number:
                continue
            for changed, cost in space.next(number, now):
                total = 0 if faults is None else spent + cost
                if total <= (faults or 0):
                    others = numbers[:place] + numbers[place + 1 :]
                    found.append((now, total, *sorted([*others, changed])))
        for state in found:
            if state not in known:
                known.add(state)
                todo.append(state)
    return len(known)


class Run(NamedTuple):
    members: int
    slots: int
    faults: int | None
    rules: Rules
    most_joins: int

    def explore(self) -> Found:
        return explore(self.members, self.slots, self.faults, self.rules, self.most_joins)


RUNS = {
    "1 member, 1 slot, clocks that differ, any number of faults": Run(1, 1, None, RULES, 2),
    "1 member, 2 slots, any number of faults": Run(1, 2, None, PUNCTUAL, 2),
    "3 members, 2 slots, 1 fault": Run(3, 2, 1, PUNCTUAL._replace(labels=1), 2),
    "5 members, 1 slot, 1 fault": Run(5, 1, 1, PUNCTUAL, 1),
}
"""What is explored; `python -m tests.cohorts.explore [NUMBER …]` tells states and time."""


def main(chosen: list[str]) -> None:
    for number, (name, run) in enumerate(RUNS.items(), 1):
        if not chosen or str(number) in chosen:
            began = process_time()
            found = run.explore()
            took = process_time() - began
            print(f"{name}: {found.states:,} states ({found.local:,} of one member), {took:.0f} s,")
            print(f"  violations: {', '.join(sorted(found.violations)) or 'none'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
