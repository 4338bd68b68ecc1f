"""The population in slots: what leaves, who believes it, and that nobody's presence shows elsewhere."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from tests.parts import is_a
from tests.protocol.told import groups_of

from fclub.core.population.filter import svec
from fclub.core.population.model import Population
from fclub.core.population.rounds import PRIOR_ODDS, evidence_for_start
from fclub.core.types import Counts
from fclub.errors import InvalidMessage, InvalidSetting, PrivacyError
from fclub.privacy.noise import NoNoise
from fclub.privacy.plan import make_plan, slot_visits
from fclub.protocol.exchanges import slots
from fclub.protocol.exchanges.slots import (
    Release,
    Released,
    SlotsGlobal,
    SlotsLocal,
    read_whole,
    write_point,
    write_whole,
)
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces import learner as interface
from fclub.protocol.interfaces.exchange import Beginning, Moment
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.interfaces.overview import NOTHING, TIME
from fclub.protocol.learners.people import Crowd
from fclub.protocol.learners.population import PopulationLearner
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, PhaseStart, encode
from fclub.protocol.rows.population import PopulationFamily
from fclub.protocol.rows.private import PrivatePlusConstants

DIM, HALF, SERVERS, EACH = 3, float(np.sqrt(0.5)), 4, 5
USERS = SERVERS * EACH


class Recording(InProcessLink):
    """Keeps all messages."""

    sent: list[Message]
    told: list[Message]

    def from_local(self, server: int, message: Message) -> None:
        self.sent.append(message)
        super().from_local(server, message)

    def to_local(self, server: int, message: Message) -> None:
        self.told.append(message)
        super().to_local(server, message)


def family(members: int = SERVERS, **parameters: Any) -> PopulationFamily:
    shape = Shape(DIM, USERS, HALF, USERS, members)
    return PopulationFamily(PrivatePlusConstants(**({"visits": 4.0} | parameters)), shape)


def federation(sizes: list[int] | None = None, **parameters: Any) -> tuple[Federation, Recording]:
    sizes = [EACH] * SERVERS if sizes is None else sizes
    made = family(len(sizes), **parameters)
    link = Recording(made.decode)
    link.sent, link.told = [], []
    first = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.arange(first[-1])
    return Federation(made, rows, first, SeedSequence(1), seeded=True, link=link), link


def visits(count: int, seed: int = 2) -> list[tuple[int, int, Any, float]]:
    """Server, row, item and reward; users like what the first feature says."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        x = np.append(rng.uniform(-0.4, 0.4, DIM - 1), HALF)
        y = float(rng.random() < 0.5 + x[0])
        found.append((int(rng.integers(SERVERS)), int(rng.integers(EACH)), x, y))
    return found


def play(running: Federation, seen: list[tuple[int, int, Any, float]], start: int = 0) -> None:
    for t, (server, row, x, y) in enumerate(seen, start + 1):
        running.servers[server].observe(row, x, y)
        running.advance(t)


def part(running: Federation, server: int) -> tuple[PopulationLearner, SlotsLocal]:
    local: Any = running.servers[server]
    return local.learner.population, local.exchange


def hub(running: Federation) -> SlotsGlobal:
    server: Any = running.hub
    return server.exchange


def test_slots_come_at_planned_visits_and_are_paid_for_in_full_at_the_last_one() -> None:
    running, link = federation()
    plan = hub(running).plan
    play(running, visits(4 * USERS))
    releases = [one for one in link.sent if isinstance(one, Release)]
    assert len(releases) == SERVERS * plan.releases
    assert running.clock.next_start > 4 * USERS, "types may go on at home"
    ledger = running.ledger
    assert ledger is not None
    summary: Any = ledger.summary()
    assert summary["spent"][0][0] == pytest.approx(1.0, rel=1e-3)
    assert summary["notion"] == "transcript"
    with pytest.raises(PrivacyError, match="was used, or does not exist"):
        part(running, 0)[1].receive(PhaseStart(1))


def test_messages_say_nothing_but_sums_of_a_fixed_length() -> None:
    running, link = federation([EACH, 1, EACH, 2])
    assert part(running, 1)[1].status().outlook.at == pytest.approx(0.6)
    running.advance(10**6)
    sizes = {len(encode(one)) for one in link.sent}
    assert len(sizes) == 1, "whoever has more users, or any data at all"
    assert sizes.pop() <= 8 * hub(running).plan.entries + 400
    assert all(isinstance(one, Release) for one in link.sent)


def without_noise(running: Federation) -> None:
    for server in running.servers:
        part(running, server)[1].noise = NoNoise()


def test_a_person_is_in_its_releases_by_at_most_the_bound_and_nowhere_else() -> None:
    """Without noise: add a person with much data, and compare everything that leaves."""
    seen = visits(2 * USERS)
    found = []
    for sizes in ([EACH] * SERVERS, [EACH, EACH, EACH, EACH + 1]):
        running, link = federation(sizes)
        without_noise(running)
        if sizes[-1] > EACH:
            for _, _, x, _ in seen[:15]:
                part(running, 3)[0].observe(EACH, x, 1.0)
        play(running, seen[:12])
        found.append([one for one in link.sent if isinstance(one, Release)])
    plan = hub(running).plan
    assert len(found[0]) == len(found[1]) == SERVERS
    for before, after in zip(*found, strict=True):
        moved = read_whole(after.sums, plan.entries) - read_whole(before.sums, plan.entries)
        assert int(moved @ moved) <= plan.steps**2 + plan.count**2
    assert int(moved[-1]) == plan.count
    assert [one.sums for one in found[0][:3]] == [one.sums for one in found[1][:3]]


def test_all_servers_believe_the_same_population_and_each_its_own_users() -> None:
    running, _ = federation()
    play(running, visits(3 * USERS))
    learners = [part(running, server)[0] for server in range(SERVERS)]
    for learner in learners:
        assert np.array_equal(learner.population.mean, learners[0].population.mean)
        assert not np.array_equal(learner.population.covariance, np.eye(DIM))
        assert learner.servers == SERVERS - 1
    assert len({float(learner.odds[0]) for learner in learners}) == SERVERS


def test_at_interactive_each_user_decides_alone() -> None:
    running, _ = federation(level="interactive")
    play(running, visits(4 * USERS))
    assert running.clock.next_start > 10**12, "all slots are over, and nothing is learned at home"
    for server in range(SERVERS):
        local: Any = running.servers[server]
        assert local.learner.odds[0] == PRIOR_ODDS
    assert running.ledger is not None
    assert running.ledger.summary()["unaccounted"] == []


def test_evidence_is_asked_for_at_releases_and_as_visits_grow() -> None:
    running, _ = federation()
    play(running, visits(3 * USERS))
    learner, _ = part(running, 0)
    rng = np.random.default_rng(4)
    for _ in range(40):
        due, before = int(learner.asked[0]), float(learner.odds[0])
        learner.observe(0, np.append(rng.uniform(-0.4, 0.4, DIM - 1), HALF), 1.0)
        if learner.visits[0] < due:
            assert learner.odds[0] == before
        else:
            told = evidence_for_start(learner.start, learner.released, learner.users, 0, EACH)
            assert learner.odds[0] == PRIOR_ODDS + told
            assert learner.asked[0] > learner.visits[0]


def test_without_sharing_nothing_leaves() -> None:
    running, link = federation(share=False)
    play(running, visits(3 * USERS))
    assert link.sent == []
    assert set(link.told) == {PhaseStart(0)}, "times to learn at home"
    assert running.hub.overview() == []
    local = running.servers[0]
    assert local.overview()[0].group is None
    assert groups_of(local).tolist() == [-1] * EACH


def test_what_is_shown_of_a_population() -> None:
    running, _ = federation(level="interactive")
    play(running, visits(2 * USERS))
    local = running.servers[1]
    (everybody,) = local.overview()
    assert (everybody.users, everybody.cluster, everybody.group) == (EACH, 0, 0)
    assert everybody.own == int(local.counts.sum())
    assert everybody.shared_by == SERVERS
    assert groups_of(local).tolist() == [0] * EACH
    assert local.learner.theta().shape == (EACH, DIM)
    (group,) = running.hub.overview()
    assert group.members == [(server, 0) for server in range(SERVERS)]
    assert (group.observations, running.hub.reported, running.hub.released_by(0)) == (0, 0, 0)
    used, plan = local.status().used, hub(running).plan
    assert running.hub.used_by(0) == used == running.hub.phase
    assert running.hub.paid_by(0) == used / plan.releases
    assert set(local.status().streams) == {"1"}
    assert local.due() is None
    assert local.due(Moment(1e9, 0.0)) is None, "the simulation's clock is its own"
    local.go_on()
    empty = PopulationLearner(
        is_a(Crowd, family().users(0)).users,
        family().model,
        family().domain,
        pooled=True,
        exploration=1.0,
    )
    assert empty.overview() == []


def test_estimates_are_of_rewards_as_they_are() -> None:
    made = family()
    learner = PopulationLearner(is_a(Crowd, made.users(1)).users, made.model, made.domain, True, 1.0)
    assert learner.theta()[0] @ np.array([0.0, 0.0, HALF]) == pytest.approx(0.5)
    plain = PopulationFamily(PrivatePlusConstants(), Shape(DIM, 1, None, 1, 1))
    bare = PopulationLearner(is_a(Crowd, plain.users(1)).users, plain.model, plain.domain, True, 1.0)
    assert not bare.theta().any()


LEVELS = pytest.mark.parametrize("level", ["transcript", "interactive"])


@LEVELS
def test_rewards_are_replaced_and_users_forgotten_and_added(level: str) -> None:
    running, _ = federation(level=level)
    local: Any = running.servers[0]
    x = np.array([0.3, 0.1, HALF])
    local.observe(1, x, 1.0)
    once = local.stored(1).moment.copy()
    local.replace(1, x, 1.0, 0.0)
    assert np.allclose(local.stored(1).moment, -once)
    assert local.forget(1) == 0, "nothing has left yet"
    assert local.stored(1).count == 0
    play(running, visits(USERS))
    row = int(np.argmax(local.counts))
    seen = int(local.counts[row])
    assert local.forget(row) == seen
    assert local.add_user() == EACH
    local.observe(EACH, x, 1.0, releasable=False)
    assert local.counts[EACH] == 1
    assert local.recommend(EACH, np.array([[-0.4, 0.0, HALF], x])) in (0, 1)


def test_in_parts_a_slot_has_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    monkeypatch.setattr(interface, "PART", 2)
    for parts in (False, True):
        running, link = federation()
        without_noise(running)
        for server in running.servers:
            local: Any = running.servers[server]
            local.in_parts = parts
        play(running, visits(11))
        hub(running).slot = 0
        local = running.servers[0]
        local.receive(PhaseStart(1))
        while local.busy:
            local.part()()
        sums.append(link.sent[0])
    assert sums[0] == sums[1]


@LEVELS
def test_a_saved_federation_goes_on_alike(level: str) -> None:
    seen = visits(4 * USERS)
    running, link = federation(level=level)
    play(running, seen[: 2 * USERS])
    arrays, values = running.state()
    again, other = federation(level=level)
    again.restore({name: array.copy() for name, array in arrays.items()}, values)
    known = len(link.sent)
    for one in (running, again):
        play(one, seen[2 * USERS :], 2 * USERS)
    assert other.sent == link.sent[known:]
    assert other.sent
    local: Any = running.servers[2]
    users = "crowd.users" if level == "transcript" else "users"
    assert [name.removeprefix("types.") for name in local.learner.by_user][:3] == [
        f"{users}.gram",
        f"{users}.moment",
        f"{users}.counts",
    ]
    assert not local.exchange.by_user
    larger, _ = federation([EACH] * (SERVERS - 1) + [EACH + 1], level=level)
    grown: Any = larger.servers[0]
    grown.learner.add_user()
    saved = grown.state()
    small, _ = federation(level=level)
    other_server: Any = small.servers[0]
    other_server.restore(*saved)
    assert len(other_server.counts) == EACH + 1


def test_a_message_that_cannot_be_a_release_changes_nothing() -> None:
    running, link = federation()
    play(running, visits(12))
    (told,) = {one for one in link.told if isinstance(one, Released)}
    learner, exchange = part(running, 0)
    known, plan, share = learner.population, hub(running).plan, told.share
    point = write_point(Population(np.ones(DIM), 0.1 * np.eye(DIM)))
    nan = write_point(Population(np.full(DIM, np.nan), np.eye(DIM)))
    beyond = [
        Population(np.ones(DIM), np.diag([1.0, -0.5, 1.0])),
        Population(np.ones(DIM), 13.0 * np.eye(DIM)),
        Population(2.0 * np.ones(DIM), np.eye(DIM)),
    ]
    refused = [
        *[(Released(1, SERVERS, share, told.sums, write_point(one)), "beyond") for one in beyond],
        (Released(1, SERVERS, share, told.sums, nan), "not finite"),
        (Released(1, SERVERS, share, told.sums, point[:-8]), "expected a population of 9 numbers"),
        (Released(1, SERVERS, share, told.sums[:-8], point), "expected 16 whole numbers"),
        (Released(plan.releases, SERVERS, share, told.sums, point), "makes no sense"),
        (Released(-1, SERVERS, share, told.sums, point), "makes no sense"),
        (Released(1, 0, share, told.sums, point), "makes no sense"),
        (Released(1, SERVERS, 0, told.sums, point), "makes no sense"),
        (Release(1, 0, told.sums), "does not take a Release"),
    ]
    for message, reason in refused:
        with pytest.raises(InvalidMessage, match=reason):
            running.servers[0].receive(message)
    running.servers[0].receive(told)
    assert learner.population is known, "a release that is told again changes nothing either"
    after = exchange.transcript.after(1, SERVERS, share, told.sums).population
    running.servers[0].receive(Released(1, SERVERS, share, told.sums, write_point(after)))
    assert np.array_equal(svec(learner.population.covariance), svec(after.covariance))
    assert not running.servers[0].status().outlook.alarm


def test_a_population_that_does_not_follow_from_releases_raises_an_alarm() -> None:
    running, link = federation()
    play(running, visits(12))
    (told,) = {one for one in link.told if isinstance(one, Released)}
    false = Population(np.ones(DIM), 0.1 * np.eye(DIM))
    local: Any = running.servers[0]
    local.receive(Released(1, SERVERS, told.share, told.sums, write_point(false)))
    assert "does not follow from the releases" in local.status().outlook.alarm
    learner, _ = part(running, 0)
    assert np.array_equal(learner.population.mean, false.mean), "what was told is used"
    assert not np.array_equal(local.exchange.transcript.population.mean, false.mean)
    again, _ = federation()
    other: Any = again.servers[0]
    other.restore(*local.state())
    assert other.status().outlook.alarm


def whole(value: int = 0) -> bytes:
    numbers: Counts = np.full(16, value, dtype=np.int64)
    return write_whole(numbers)


def test_the_global_server_takes_one_sum_of_each_server_in_a_slot() -> None:
    running, _ = federation(secure=False)
    exchange, last = hub(running), hub(running).plan.releases
    for server, message, reason in [
        (9, Release(0, 0, whole()), "does not take a Release from server 9"),
        (0, Release(-1, 0, whole()), "does not take a Release"),
        (0, Release(last, 0, whole()), "does not take a Release"),
        (0, PhaseStart(1), "does not take a PhaseStart"),
        (0, Release(0, 0, whole()[:-8]), "expected 16 whole numbers"),
        (0, Release(0, 0, whole(2**61)), "no users can have contributed"),
    ]:
        with pytest.raises(InvalidMessage, match=reason):
            exchange.receive(server, message)
    exchange.receive(2, Release(0, 0, whole(5)))
    with pytest.raises(InvalidMessage, match="server 2 has used slot 0"):
        exchange.receive(2, Release(0, 0, whole(5)))
    exchange.receive(1, Release(0, 1, whole(5)))
    exchange.receive(0, Release(1, 0, whole(5)))
    assert set(exchange.arrived) == {2}, "another population, another slot: both are lost"
    exchange.invite(2)
    assert exchange.servers == [0, 1]


def test_a_secure_sum_holds_everybody_or_there_is_none() -> None:
    for missing in (1, 0):
        running, link = federation()
        exchange = hub(running)
        assert exchange.plan.secure
        for server in range(SERVERS - missing):
            exchange.receive(server, Release(0, 0, whole()))
        exchange.closings = (100.0,)
        with pytest.raises(InvalidMessage, match="does not take a Release"):
            exchange.receive(0, Release(0, 0, whole()))
        assert exchange.due(99.0) is None
        close = exchange.due(100.0)
        assert close is not None
        close()
        assert exchange.due(100.0) is None
        told = [one for one in link.told if isinstance(one, Released)]
        assert len(told) == (0 if missing else SERVERS)


def test_noise_is_shared_out_among_three_servers_or_more() -> None:
    assert family(3).plan.secure
    assert not family(2).plan.secure
    assert not family(3, colluders=2).plan.secure
    assert family(4, colluders=2).plan.colluders == 2
    running, link = federation()
    running.advance(10**6)
    plan = hub(running).plan
    drawn = np.concatenate(
        [read_whole(one.sums, plan.entries) for one in link.sent if isinstance(one, Release)]
    )
    assert np.std(drawn) == pytest.approx(plan.share(SERVERS), rel=0.3), "nobody has data yet"


def test_a_session_that_begins_anew_uses_no_slot_twice() -> None:
    running, _ = federation()
    local = running.servers[0]
    local.begin(Beginning(used=2))
    assert local.status().used == 2
    local.begin(Beginning(used=1))
    assert local.status().used == 2
    with pytest.raises(PrivacyError, match="was used"):
        local.receive(PhaseStart(2))


def test_a_plan_of_a_file_is_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    told: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "dim": DIM, "users": 7, "members": SERVERS}
    plan = make_plan(visits=slot_visits(9.0), **told)
    plan.write(path)
    made = family(plan=str(path))
    assert made.plan == plan
    assert made.clock().starts == tuple(round(7 * number) for number in plan.visits)
    assert made.fingerprint()["plan"]["users"] == 7
    assert made.price().stream == plan.mu
    with pytest.raises(InvalidSetting, match="the plan is for dim, members, epsilon"):
        _ = family(plan=str(path), epsilon=2.0).plan


TOLERANCE = 60.0
FIRST, SECOND, THIRD = 1000.0, 2000.0, 3000.0
BEGAN = 100.0


def clocked(**told: Any) -> PopulationFamily:
    """A live family with three slots of 100 seconds, and noise per server."""
    given = {"epsilon": 1.0, "delta": 1e-5, "dim": DIM, "users": USERS, "members": 2, "secure": False}
    plan = make_plan(visits=(1.0, 2.0, 3.0), seconds_per_visit=1000.0, window=100.0, **(given | told))
    return PopulationFamily(
        PrivatePlusConstants(plan=plan.encode().decode()), Shape(DIM, USERS, HALF, live=True)
    )


class Posted:
    """A link that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def to_global(self, message: Message) -> None:
        self.sent.append(message)


def server_of(made: PopulationFamily, users: int = EACH) -> tuple[Any, Posted]:
    link = Posted()
    place = Place("0", link, NoNoise(), made.ledger(True), np.random.default_rng(0))
    local = made.local_server(place, made.users(users), live=True)
    x = np.array([0.3, 0.1, HALF])
    for row in range(users):
        local.observe(row, x, 1.0)
    return local, link


def at(local: Any, now: float, began: float = BEGAN) -> int:
    """What the time calls for is done; how many steps that took."""
    steps = 0
    while (work := local.due(Moment(now, began))) is not None:
        work()
        steps += 1
    return steps


def test_slots_are_due_by_the_clock_alone() -> None:
    local, link = server_of(clocked())
    assert at(local, FIRST - 1.0) == 0
    assert (local.status().outlook.what, local.status().outlook.at) == (TIME, FIRST)
    assert local.exchange.due(None) is None, "no visit leads to a release"
    assert at(local, FIRST) == 1
    assert [is_a(Release, one).slot for one in link.sent] == [0]
    assert at(local, FIRST + 50.0) == 0
    assert at(local, THIRD + 99.0) == 2, "the second slot is left out, the third is made"
    assert [is_a(Release, one).slot for one in link.sent] == [0, 2]
    assert local.exchange.ledger.streams["0"].sequence == 2, "what is left out costs nothing"
    assert local.status().outlook.at is None
    with pytest.raises(InvalidMessage, match="does not take a PhaseStart"):
        local.receive(PhaseStart(2))


def test_a_slot_whose_window_is_over_is_never_made_up_for() -> None:
    local, link = server_of(clocked())
    local.pause()
    assert at(local, FIRST + 99.0) == 0, "it may still come"
    local.go_on()
    assert at(local, FIRST + 99.0) == 1
    local.pause()
    assert at(local, SECOND + 100.0) == 1
    local.go_on()
    assert at(local, SECOND + 100.0) == 0
    assert [is_a(Release, one).slot for one in link.sent] == [0]


def test_a_process_leaves_slots_before_its_own_beginning_alone_and_charges_them() -> None:
    local, link = server_of(clocked())
    began = SECOND - TOLERANCE
    assert at(local, began, began) == 1
    assert not link.sent
    assert local.exchange.ledger.streams["0"].sequence == 2, "a copy may have used both"
    assert at(local, SECOND, began) == 0
    assert at(local, THIRD, began) == 1
    assert [is_a(Release, one).slot for one in link.sent] == [2]
    assert local.status().used == 3


def test_what_was_being_computed_is_void_in_another_process_or_after_its_window() -> None:
    for now, began, paid in [(FIRST + 50.0, FIRST + 1.0, 1), (FIRST + 100.0, BEGAN, 0)]:
        local, link = server_of(clocked())
        local.in_parts = True
        assert at(local, FIRST) == 1
        assert local.busy
        assert local.status().used == 0, "it has not left"
        again, sent = server_of(clocked())
        again.in_parts = True
        again.restore(*local.state())
        assert at(again, now, began) == 1
        while again.busy:
            again.part()()
        assert not sent.sent
        streams = again.exchange.ledger.streams
        assert (streams["0"].sequence if streams else 0) == paid
        while local.busy:
            local.part()()
        assert [is_a(Release, one).slot for one in link.sent] == [0]


def test_an_older_store_pays_for_what_the_global_server_has_heard() -> None:
    """Once the slot has begun here: a global server that makes slots up costs nothing before."""
    local, link = server_of(clocked())
    local.begin(Beginning(local_old=True, used=2))
    assert at(local, FIRST - 1.0) == 0
    assert not local.exchange.ledger.streams
    assert at(local, SECOND) == 1
    assert local.exchange.ledger.streams["0"].sequence == 2
    assert at(local, THIRD) == 1
    assert [is_a(Release, one).slot for one in link.sent] == [2]
    local.begin(Beginning(used=10**6))
    assert local.status().used == 3


@pytest.mark.parametrize("servers", [1, 1_000, 2**62])
@pytest.mark.parametrize("value", [0, 2**61, -(2**63)])
def test_no_release_of_a_dishonest_global_server_breaks_a_local_one(servers: int, value: int) -> None:
    """Sums that users can have contributed lead to a population; others are refused."""
    made = clocked()
    local, _ = server_of(made)
    point = made.first.after(0, 1, 1, whole(0)).releases[0].point
    for slot in range(3):
        with suppress(InvalidMessage):
            local.receive(Released(slot, servers, 1, whole(value), point))
    at(local, FIRST)
    assert np.isfinite(local.exchange.transcript.most).all()


def test_sums_from_which_no_population_follows_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def singular(*told: Any) -> None:
        raise np.linalg.LinAlgError

    made = clocked()
    link = InProcessLink(made.decode)
    local, _ = server_of(made)
    hub: Any = made.global_server([0, 1], link)
    point = made.first.after(0, 1, 1, whole(0)).releases[0].point
    monkeypatch.setattr(slots, "learn", singular)
    with pytest.raises(InvalidMessage, match="no population follows"):
        local.receive(Released(0, 2, 2, whole(3), point))
    assert local.exchange.transcript.told == 0
    hub.exchange.summed(0, 2, 2, whole(3))
    assert hub.exchange.transcript.told == 0
    assert hub.exchange.slot == 1


def test_a_global_server_that_lost_releases_says_which_count() -> None:
    made = clocked()
    local, _ = server_of(made)
    at(local, FIRST)
    first = made.first.after(0, 2, 100, whole(7))
    local.receive(first.releases[0])
    local.receive(first.after(1, 2, 100, whole(9)).releases[1])
    assert local.exchange.transcript.told == 2
    local.begin(Beginning(global_lost=True))
    assert local.exchange.transcript.told == 0
    local.receive(first.releases[0])
    assert local.exchange.transcript.told == 1


def test_the_global_server_closes_slots_by_its_own_clock_and_tells_newcomers() -> None:
    made = clocked()
    told: list[tuple[int, Message]] = []

    class Down:
        def to_local(self, server: int, message: Message) -> None:
            told.append((server, message))

    server: Any = made.global_server([0, 1], Down())
    server.receive(0, Release(0, 0, whole(7)))
    assert server.due(FIRST + 99.0) is None
    server.advance()
    assert not told
    saved = server.state()
    server.due(FIRST + 100.0)()
    assert [one[0] for one in told] == [0, 1]
    assert server.phase == 1
    again: Any = made.global_server([0, 1], Down())
    again.restore(*saved)
    again.due(SECOND + 150.0)()
    assert told[2:] == told[:2], "what had arrived is kept, and nothing came to the second slot"
    assert again.phase == 2
    again.begin(1, Beginning(local_new=True))
    assert told[4:] == [told[1]]


def test_live_servers_without_a_plan_serve_alone() -> None:
    made = PopulationFamily(PrivatePlusConstants(), Shape(DIM, USERS, HALF, live=True))
    local, link = server_of(made)
    assert at(local, 10.0**10) == 0
    assert not link.sent
    assert local.status().outlook.what == NOTHING
    assert made.fingerprint()["plan"] is None
    global_server: Any = made.global_server([0], InProcessLink(made.decode))
    assert global_server.due(10.0**10) is None


def test_exact_sums_of_a_secure_plan_wait_for_the_cohort() -> None:
    made = clocked(secure=True, members=5)
    local, link = server_of(made)
    exchange = local.exchange
    assert at(local, FIRST) == 1
    assert not link.sent
    assert exchange.prepared.slot == exchange.open == 0
    assert exchange.ledger.streams == {}, "nothing has left"
    exchange.sent(0)
    assert (exchange.prepared, exchange.open, local.status().unanswered) == (None, None, True)
    assert exchange.ledger.streams["0"].sequence == 1
    assert at(local, SECOND) == 1
    local.forget(0)
    assert exchange.prepared is None, "what waits holds a user who was forgotten"
    assert at(local, SECOND + 100.0) == 1, "the slot is left out, at no cost"
    assert (exchange.open, exchange.ledger.streams["0"].sequence) == (None, 1)


def test_users_are_added_up_again_without_one_who_was_forgotten_also_in_a_pause() -> None:
    local, link = server_of(clocked(secure=True, members=5))
    exchange: Any = local.exchange
    local.begin(Beginning(used=3))
    assert at(local, FIRST) == 1, "what the other side says of a cohort's slots does not count"
    everybody = exchange.prepared.sums
    local.pause()
    local.forget(0)
    assert at(local, FIRST + 1.0) == 1
    again = exchange.prepared.sums
    assert (exchange.prepared.slot, np.array_equal(everybody, again)) == (0, False)
    local.forget(1)
    local.in_parts = True
    assert at(local, FIRST + 2.0) == 1
    local.forget(2)
    while local.busy:
        local.part()()
    assert exchange.prepared is None, "somebody else was forgotten meanwhile"
    assert not link.sent


def test_a_cohort_s_sum_is_learned_and_told() -> None:
    made = clocked(secure=True, members=5)
    told: list[Message] = []
    link = InProcessLink(made.decode)
    link.to_local = lambda server, message: told.append(message)  # type: ignore[method-assign]
    server: Any = made.global_server([0, 1], link)
    server.exchange.summed(0, 5, 100, whole(7))
    sums = [is_a(Released, one) for one in told]
    assert [(one.servers, one.share) for one in sums] == [(5, 100), (5, 100)]
    assert server.phase == 1
    arrays, values = server.state()
    again: Any = made.global_server([0, 1], link)
    again.restore(arrays, values)
    assert again.exchange.transcript.digest == server.exchange.transcript.digest
    assert made.first.digest != server.exchange.transcript.digest


def test_compiled_rounds_leave_the_same_as_readable_ones() -> None:
    readable, _ = federation(level="interactive")
    fast, _ = federation(level="interactive")
    compiled = fast.family.compiled(fast)
    assert compiled is not None
    state = compiled.pack()
    _, learn = compiled.kernels
    for t, (server, row, x, y) in enumerate(visits(3 * USERS), 1):
        readable.servers[server].observe(row, x, y)
        readable.advance(t)
        learn(state, server * EACH + row, x, y)
        if t == fast.clock.next_start:
            compiled.count_events(state)
            compiled.unpack(state)
            fast.advance(t)
            state = compiled.pack()
    compiled.unpack(state)
    for server in range(SERVERS):
        one, other = [running.servers[server] for running in (readable, fast)]
        for (name, array), (_, same) in zip(*(x.state()[0].items() for x in (one, other)), strict=True):
            assert np.array_equal(array, same), name
        assert one.state()[1] == other.state()[1]
        assert np.array_equal(one.learner.theta(), other.learner.theta())
