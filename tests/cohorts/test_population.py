"""Slots of a simulated federation again, as cohorts on stores and wires: the same sums, bit for bit."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.random import SeedSequence
from tests.cohorts.lab import Entropy, identity_of, list_of

from fclub.cohorts.hub import Hub, HubRecord, Stage
from fclub.cohorts.member import Member, MemberRecord
from fclub.cohorts.messages import Step, decode, encode
from fclub.cohorts.plan import CohortPlan, guarantees, plan_from
from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.errors import InvalidSetting
from fclub.privacy.plan import make_plan, slot_visits
from fclub.protocol.exchanges.slots import Released, SlotsLocal, read_whole
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Shape
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message
from fclub.protocol.rows.population import PopulationFamily
from fclub.protocol.rows.private import PrivatePlusConstants

HALF = float(np.sqrt(0.5))
DAY = 86_400


class Recorded:
    """Noise of a simulation, written down."""

    def __init__(self, source: Any) -> None:
        self.source, self.seeded = source, source.seeded
        self.drawn: list[Whole] = []
        self.deviations: list[float] = []

    def integers(self, deviations: Floats) -> Whole:
        self.deviations.append(float(deviations[0]))
        self.drawn.append(self.source.integers(deviations))
        return self.drawn[-1]


class Replayed:
    """The same noise again, if its deviation is that of the share."""

    seeded = True

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.next = recorded, 0

    def integers(self, deviations: Floats) -> Whole:
        assert deviations[0] == self.recorded.deviations[self.next]
        self.next += 1
        return self.recorded.drawn[self.next - 1]


class Keeping(InProcessLink):
    told: list[Released]

    def to_local(self, server: int, message: Message) -> None:
        if server == 0 and isinstance(message, Released):
            self.told.append(message)
        super().to_local(server, message)


class Simulated:
    """What a federation of so many servers released, with the sums before noise and the noise."""

    def __init__(self, patch: pytest.MonkeyPatch, *sizes: int) -> None:
        servers, users, visits, dim = sizes
        everybody = servers * users
        shape = Shape(dim, everybody, HALF, everybody, servers)
        family = PopulationFamily(PrivatePlusConstants(visits=float(visits)), shape)
        self.plan = family.plan
        link = Keeping(family.decode)
        link.told = []
        first = np.arange(0, everybody + 1, users)
        rows, seeds = np.arange(everybody), SeedSequence(1)
        running = Federation(family, rows, first, seeds, seeded=True, link=link)
        self.sums: list[list[Whole]] = [[] for _ in range(servers)]
        self.noise: list[Recorded] = []
        places = {}
        for place, server in running.servers.items():
            exchange: Any = server
            exchange = exchange.exchange
            exchange.noise = Recorded(exchange.noise)
            self.noise.append(exchange.noise)
            places[id(exchange)] = place
        real = SlotsLocal.finish

        def finish(exchange: SlotsLocal, job: Any) -> None:
            self.sums[places[id(exchange)]].append(job.total["sums"].copy())
            real(exchange, job)

        patch.setattr(SlotsLocal, "finish", finish)
        rng = np.random.default_rng(2)
        for t in range(1, everybody * visits + 1):
            x = np.append(rng.uniform(-0.2, 0.2, dim - 1), HALF)
            y = float(rng.random() < 0.5 + x[0])
            running.servers[int(rng.integers(servers))].observe(int(rng.integers(users)), x, y)
            running.advance(t)
        self.released = link.told


class Shop:
    """A member on a database of its own: committed before anything is sent, started from it anew."""

    def __init__(self, number: int, folder: Path, clock: Any, noise: Replayed) -> None:
        self.identity = identity_of(f"shop-{number:02}")
        self.database = sqlite3.connect(folder / f"{number}.db")
        self.database.execute("CREATE TABLE record (value BLOB)")
        self.database.execute("INSERT INTO record VALUES (?)", [msgspec.msgpack.encode(MemberRecord())])
        self.clock, self.noise, self.number = clock, noise, number
        self.process = 0

    @property
    def record(self) -> MemberRecord:
        (value,) = self.database.execute("SELECT value FROM record").fetchone()
        return msgspec.msgpack.decode(value, type=MemberRecord)

    def start(self) -> None:
        self.process += 1
        entropy = Entropy(1_000 * self.number + self.process)
        self.member = Member(self.identity, self.record, self.clock, entropy, self.noise)
        self.store(self.member.begin())

    def store(self, step: Step) -> Step:
        if step.change is not None:
            stored = msgspec.msgpack.encode(step.change)
            with self.database:
                self.database.execute("UPDATE record SET value = ?", [stored])
        return step


def cohort_sums(simulated: Simulated, folder: Path) -> tuple[list[Whole], list[Shop], CohortPlan]:
    """Every slot as a cohort; all members are started again between slots."""
    now = 0.0
    times = tuple(DAY * visits for visits in simulated.plan.visits)
    terms = msgspec.structs.replace(simulated.plan, start=1e6, times=times, window=600.0)
    plan = plan_from(terms, "shops")
    shops = [Shop(i, folder, lambda: now, Replayed(noise)) for i, noise in enumerate(simulated.noise)]
    listed = msgspec.structs.replace(list_of([shop.identity for shop in shops]), federation="shops")
    for shop in shops:
        shop.start()
        shop.store(shop.member.accept(listed))
        shop.store(shop.member.adopt(plan))
    hub = Hub(listed, plan, HubRecord(), lambda: now, Entropy(10**6))
    by_name = {shop.identity.name: shop for shop in shops}
    found = []
    for slot, time in enumerate(plan.times):
        now = time - 3_600.0
        for shop in shops:
            shop.start()
        now = time + 5.0
        for shop, sums in zip(shops, simulated.sums, strict=True):
            shop.member.prepare(plan.period, slot, sums[slot])
        queue = [("", out) for out in hub.call(slot).messages]
        while queue:
            sender, (to, message, _) = queue.pop(0)
            arrived = decode(encode(message))
            if to:
                shop = by_name[to]
                queue += [(to, out) for out in shop.store(shop.member.receive(arrived)).messages]
            else:
                queue += [("", out) for out in hub.receive(sender, arrived).messages]
        assert hub.view is not None
        assert hub.view.stage == Stage.SUMMED
        found.append(hub.total)
    return found, shops, plan


def same_sums(patch: pytest.MonkeyPatch, folder: Path, *sizes: int) -> None:
    simulated = Simulated(patch, *sizes)
    assert len(simulated.released) == simulated.plan.releases
    found, shops, plan = cohort_sums(simulated, folder)
    for released, total in zip(simulated.released, found, strict=True):
        assert released.sums == total.astype("<i8").tobytes()
        assert read_whole(released.sums, plan.entries).tolist() == total.tolist()
    for shop in shops:
        charges = shop.record.charges
        assert [charge.slot for charge in charges] == list(range(len(plan.times)))
        assert not any(charge.presumed for charge in charges)
        spent = guarantees(charges, {plan.period: plan}, simulated.plan.delta)
        assert spent.together.mu == pytest.approx(simulated.plan.mu, rel=1e-5)
        assert spent.together.add_or_remove <= simulated.plan.epsilon * (1 + 1e-4)
        assert spent.alone.add_or_remove <= simulated.plan.epsilon_alone
        shop.database.close()


def test_six_members_have_the_sums_of_the_simulation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    same_sums(monkeypatch, tmp_path, 6, 5, 4, 3)


@pytest.mark.slow
def test_forty_members_have_the_sums_of_the_simulation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """40 members of 50 users with 20 visits each, 10 features."""
    same_sums(monkeypatch, tmp_path, 40, 50, 20, 10)


def test_a_plan_without_secure_sums_makes_no_cohort() -> None:
    told: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "dim": 3, "users": 100, "members": 4}
    plan = make_plan(**told, visits=slot_visits(10.0), seconds_per_visit=DAY, start=1e9)
    made = plan_from(plan, "shops")
    assert (made.cap, made.colluders, made.entries) == (38, 1, plan.entries)
    assert made.times[0] >= 1e9
    other = plan_from(msgspec.structs.replace(plan, past=1.0), "shops")
    assert other.hash != made.hash
    alone = make_plan(**told, visits=slot_visits(10.0), secure=False)
    with pytest.raises(InvalidSetting, match="secure"):
        plan_from(alone, "shops")
