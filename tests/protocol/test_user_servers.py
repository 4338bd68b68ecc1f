"""Servers that release whole users: slots, what leaves in them, and what others make of it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.protocol.two_kinds import DIM, HALF, answer, check_saved, offer, play, same_in_both_loops

import fclub
from fclub.config import Problem
from fclub.core.plus.type_filter import first_types
from fclub.core.types import Floats
from fclub.errors import InvalidMessage, PrivacyError
from fclub.policies.registry import make_policy
from fclub.privacy.calibration import compose, mu_of
from fclub.privacy.noise import NoNoise, SeededNoise
from fclub.protocol.families import make_family
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, PhaseStart, encode
from fclub.protocol.plus.growing import GrowingUsers
from fclub.protocol.plus.messages import Shares, decode
from fclub.protocol.plus.slots import PERIOD
from fclub.protocol.plus.split_local import SplitLocal
from fclub.protocol.plus.type_messages import Release, Released, read_noised, write_types
from fclub.protocol.plus.user_global import KEPT, UserGlobal
from fclub.protocol.plus.user_local import UserLocal
from fclub.protocol.seam import Place, Shape

PAIR: dict[str, Any] = {"unit": "user", "level": "transcript", "types": 4, "delta": 1e-5}
SHAPE = Shape(DIM, 100, HALF)


def started(server_of: list[int], **parameters: Any) -> fclub.Policy:
    policy = make_policy("cdp-fclub-plus", **(PAIR | parameters))
    policy.start(Problem(len(server_of), max(server_of) + 1, DIM, HALF), np.array(server_of), seed=3)
    return policy


THREE = [0] * 20 + [1] * 3 + [2] * 20


class Noted(InProcessLink):
    """Remembers every message and its size."""

    def __init__(self, family: Any) -> None:
        super().__init__(family.decode)
        self.up: list[Message] = []
        self.down: list[Message] = []

    def from_local(self, server: int, message: Message) -> None:
        self.up.append(message)
        super().from_local(server, message)

    def to_local(self, server: int, message: Message) -> None:
        self.down.append(message)
        super().to_local(server, message)


class Live:
    """Servers that meet their users one by one; somebody arrives, then perhaps answers."""

    def __init__(self, servers: int = 2, noise: bool = True, **parameters: Any) -> None:
        self.family = make_family("cdp-fclub-plus", SHAPE, PAIR | {"few": 5, "ratio": 1.3} | parameters)
        self.link, self.ledger = Noted(self.family), self.family.ledger(seeded=True)
        self.noise = [np.random.default_rng(number) for number in range(servers)]
        self.locals: list[Any] = []
        for number in range(servers):
            source = SeededNoise(self.noise[number]) if noise else NoNoise()
            rng = np.random.default_rng(number)
            place = Place(str(number), self.link.uplink(number), source, self.ledger, rng)
            self.locals.append(self.family.local_server(place, self.family.users(0), live=True))
        self.hub: Any = self.family.global_server([], self.link)
        self.link.connect(self.hub, dict(enumerate(self.locals)))
        self.hub.invite(servers)

    def visit(self, rounds: int, users: int = 8, seed: int = 0, answered: float = 1.0) -> list[int]:
        rng, choices = np.random.default_rng(seed), []
        for t in range(rounds):
            server, row = self.locals[t % len(self.locals)], int(rng.integers(users))
            while row >= len(server.counts):
                server.add_user()
            slotted = server.slotted
            assert slotted is not None
            slotted.arrive()
            slot = slotted.due_slot()
            if slot is not None:
                slotted.release(slot)
            items = offer(rng)
            choices.append(server.recommend(row, items))
            x, silent = items[choices[-1]], rng.random() >= answered
            reward = answer(rng, row, x)
            if not silent:
                server.observe(row, x, reward)
                work = server.due()
                if work is not None:
                    work()
            self.hub.advance()
        return choices


def releases(live: Live) -> list[Release]:
    return [message for message in live.link.up if isinstance(message, Release)]


def test_servers_with_few_users_keep_to_themselves() -> None:
    policy = started(THREE, few=4)
    assert [type(s) for s in policy.servers.values()] == [UserLocal, SplitLocal, UserLocal]
    play(policy, 600)
    assert isinstance(policy.hub, UserGlobal)
    assert set(policy.hub.told) == {0, 2}
    assert policy.servers[1].ids == []
    assert policy.hub.released_by(1) == 0


def test_where_everybody_is_served_alone_there_are_no_clusters_either() -> None:
    policy = started(THREE, few=4, level="interactive")
    assert all(isinstance(server, UserLocal) for server in policy.servers.values())


@pytest.mark.parametrize("level", ["transcript", "interactive"])
@pytest.mark.parametrize("share", [True, False])
def test_the_compiled_loop_equals_the_readable_one(share: bool, level: str) -> None:
    parameters = PAIR | {"few": 4, "share": share, "level": level}
    trace = same_in_both_loops("cdp-fclub-plus", 900, **parameters)
    assert (trace.communications["phases"][-1] > 0) == share


@pytest.mark.parametrize("level", ["transcript", "interactive"])
def test_a_saved_federation_goes_on_as_if_nothing_had_happened(tmp_path: Path, level: str) -> None:
    policy = started(THREE, few=4, level=level)
    play(policy, 300)
    check_saved(policy, tmp_path / "saved.npz")


def test_every_slot_is_sent_and_all_are_of_one_size() -> None:
    live = Live(slots=6)
    live.visit(700)
    sent = releases(live)
    assert sorted({m.slot for m in sent}) == list(range(6))
    assert len(sent) == 12, "also when nothing is new, and never more than there are slots"
    assert len({len(m.sums) for m in sent}) == 1
    assert len(sent[0].sums) == 8 * (4 * (DIM + 1) + DIM * (DIM + 1) // 2)
    for message in sent:
        assert decode(encode(message)) == message
        assert sum(message.count()) == len(message.parts()) == 4
        counted = sum(int.from_bytes(part.statistics, "little") for part in message.parts())
        assert counted == message.visits


def test_slots_go_by_visits_whether_or_not_they_bring_a_reward() -> None:
    """The moments of release are the same, and public; what is released is not."""
    lives = [Live(), Live()]
    for live, answered in zip(lives, (1.0, 0.3), strict=True):
        live.visit(400, answered=answered)
    first, second = ([m[:5] for m in map(_public, releases(live))] for live in lives)
    assert first == second
    assert releases(lives[0])[-1].sums != releases(lives[1])[-1].sums


def _public(message: Release) -> tuple[int, ...]:
    return message.period, message.slot, message.users, message.visits, message.types


def test_books_say_what_was_spent_by_unit() -> None:
    live = Live(slots=6)
    live.visit(700)
    assert live.ledger is not None
    allowed = mu_of(1.0, 1e-5)
    assert live.ledger.unit == "user"
    assert live.ledger.mu == pytest.approx(live.family.slots.mu)
    assert live.ledger.mu <= allowed
    plan = live.family.slots
    each = [plan.most(slot) / plan.noise(slot) for slot in range(plan.releases)]
    assert compose(each) == pytest.approx(live.ledger.mu)
    shown = live.ledger.summary()
    assert shown["unit"] == "user"
    assert all(event.unit == "user" for event in live.ledger.events)
    spent, replaced = shown["spent"], shown["spent_if_replaced"]
    assert isinstance(spent, list)
    assert isinstance(replaced, list)
    assert spent[0][0] == pytest.approx(1.0, abs=1e-3)
    assert replaced[0][0] > 2.0 * spent[0][0]
    streams = [server.streams() for server in live.locals]
    assert [list(found) for found in streams] == [["0/0"], ["1/0"]]


def test_a_slot_is_computed_once() -> None:
    live = Live()
    live.visit(120)
    server = live.locals[0]
    used = server.server.slots.following
    assert used > 0
    for slot in (used - 1, 0, 99):
        with pytest.raises(PrivacyError, match="slot"):
            server.release(slot)
    assert server.server.slots.following == used


def test_several_slots_that_are_due_are_left_out_but_for_the_last_two() -> None:
    live = Live(few=2)
    plan = live.family.slots
    assert plan.due(0, 1, 10) is None
    assert plan.due(0, 20, 10) == 0
    assert plan.due(1, 20, 10) is None
    assert plan.due(0, 1000, 10) == plan.releases - 2
    assert plan.due(32, 10**6, 10) is None
    assert plan.due(0, 0, 0) is None


def exact(live: Live) -> Floats:
    """The sums that server 0 would send now."""
    server = deepcopy(live.locals[0].server.slots)
    server.source, server.ledger = NoNoise(), live.family.ledger(seeded=True)
    local = live.locals[0].server
    message = server.release(server.plan.releases - 1, local.users, local.visits)
    return read_noised(message.sums, 4, DIM)


def test_one_user_moves_a_release_by_its_bound_at_most() -> None:
    live = Live()
    live.visit(300)
    steps, whole = live.family.slots.steps, exact(live)
    users = live.locals[0].server.users
    for row in range(len(users.counts)):
        kept = [array[row].copy() for array in users]
        users.clear(row)
        assert np.linalg.norm(whole - exact(live)) <= steps
        for array, values in zip(users, kept, strict=True):
            array[row] = values
    users.moment[0] = np.nan
    assert np.isfinite(exact(live)).all()


def test_what_is_released_does_not_depend_on_what_the_server_learns_for_itself() -> None:
    live = Live()
    live.visit(300)
    before = exact(live)
    local = live.locals[0].server
    local.beliefs.centres[:] += 1.0
    local.beliefs.scalars[0] = 9.0
    local._believe(local.beliefs)
    assert np.array_equal(exact(live), before)


def test_types_of_a_dishonest_global_server_cannot_raise_what_one_user_adds() -> None:
    live = Live()
    live.visit(300)
    local = live.locals[0].server
    rng = np.random.default_rng(1)
    for _ in range(20):
        types = first_types(live.family.public)._replace(
            centres=rng.uniform(-50.0, 50.0, (4, DIM)), shares=rng.dirichlet(np.ones(4))
        )
        version = local.slots.version + 1
        local.receive(Released(version, 2, 16, 300, 4, write_types(types)))
        whole, kept = exact(live), [array[3].copy() for array in local.users]
        local.users.clear(3)
        assert np.linalg.norm(whole - exact(live)) <= live.family.slots.steps
        for array, values in zip(local.users, kept, strict=True):
            array[3] = values


def test_servers_learn_from_what_others_release() -> None:
    """With a budget that is no limit both end with the types of all."""
    live = Live(epsilon=30.0, delta=0.1)
    live.visit(3000, users=60)
    for server in live.locals:
        assert isinstance(server, GrowingUsers)
        local = server.server
        assert local.sharing == 1
        assert local.others.visits.sum() == pytest.approx(live.hub.reported / 2)
        assert not local.unanswered
        assert server.ids == [0, 1, 2, 3]
        assert server.waiting + live.hub.released_by(live.locals.index(server)) == 1500
    types = live.hub.types
    for sign in (-1.0, 1.0):
        assert np.abs(types.centres[:, 0] - sign * 0.7).min() < 0.25
    assert sum(group.observations for group in live.hub.overview()) == live.hub.reported


def test_a_server_does_not_listen_while_releases_say_little() -> None:
    """Its types are then those of the same server alone."""
    types = []
    for share in (True, False):
        live = Live(epsilon=0.1, share=share)
        live.visit(1500, users=60)
        types.append([server.server.beliefs for server in live.locals])
        assert {one.shared_by for server in live.locals for one in server.server.overview()} == {1}
    for heard, alone in zip(*types, strict=True):
        np.testing.assert_array_equal(heard.centres, alone.centres)
        np.testing.assert_array_equal(heard.uncertainty, alone.uncertainty)


def world(level: str, flipped: bool, share: bool = True) -> tuple[list[list[int]], list[bytes]]:
    """What everybody but user 0 is shown, by slot, and what is sent; user 0 may answer the opposite.

    The others react to what they are shown.
    """
    live = Live(1, level=level, few=0, share=share)
    rng, local = np.random.default_rng(5), live.locals[0]
    shown: list[list[int]] = [[]]
    for _ in range(12):
        local.add_user()
    for t in range(400):
        row, items, chance = int(rng.integers(12)), offer(rng), rng.random()
        local.arrive()
        slot = local.due_slot()
        if slot is not None:
            local.release(slot)
            live.hub.advance()
            shown.append([])
        x = items[local.recommend(row, items)]
        if row:
            shown[-1].append(int(np.argmax((items == x).all(axis=1))))
        reward = float(chance < x @ [0.7 * (1 if row % 2 else -1), 0.0, HALF])
        local.observe(row, x, 1.0 - reward if flipped and row == 0 and t >= 40 else reward)
        work = local.due()
        if work is not None:
            work()
    return shown, [encode(message) for message in releases(live)]


def test_served_from_released_values_only_nobody_moves_another_before_a_release() -> None:
    """User 0 begins to answer otherwise after the first slot; only the second slot can tell."""
    (shown, sent), (same, others) = (world("interactive", flipped) for flipped in (False, True))
    first = next(k for k, pair in enumerate(zip(sent, others, strict=True)) if pair[0] != pair[1])
    assert shown[: first + 1] == same[: first + 1]
    assert shown != same, "releases without noise enough do tell"


def test_at_level_transcript_neighbours_are_served_from_raw_data() -> None:
    """The flag `raw-choices` is not an empty confession: they move each other without any release."""
    for level, alike in (("transcript", False), ("interactive", True)):
        (shown, sent), (same, _) = (world(level, flipped, share=False) for flipped in (False, True))
        assert not sent
        assert (shown == same) == alike


def test_a_live_server_is_restored_at_any_moment() -> None:
    for rounds in (20, 73, 140, 215):
        first, second = Live(), Live()
        first.visit(rounds, users=3 + rounds // 20)
        for old, new in zip(first.locals, second.locals, strict=True):
            new.restore(*deepcopy(old.state()))
        second.hub.restore(*deepcopy(first.hub.state()))
        second.ledger.restore(first.ledger.events)
        for mine, its in zip(first.noise, second.noise, strict=True):
            its.bit_generator.state = mine.bit_generator.state
        runs = [live.visit(150, users=12, seed=4) for live in (first, second)]
        assert runs[0] == runs[1]
        tail = [m.sums for m in releases(second)]
        assert [m.sums for m in releases(first)][len(releases(first)) - len(tail) :] == tail


def test_releases_that_wait_are_saved_too() -> None:
    live, again = Live(), Live()
    live.visit(100)
    server = live.locals[0].server
    server.release(server.slots.following)
    again.hub.restore(*deepcopy(live.hub.state()))
    for hub in (live.hub, again.hub):
        hub.link = live.link
        hub.advance()
    assert np.array_equal(live.hub.types.centres, again.hub.types.centres)


def test_a_new_period_begins_with_nothing_and_a_new_budget() -> None:
    live = Live(slots=6)
    live.visit(700)
    slots = live.locals[0].server.slots
    local = live.locals[0].server
    assert local.due_slot() is None, "all slots are used"
    before = live.ledger.mu
    assert local.period_start(1e9) == 0, "unless a period is set there is one for ever"
    slots.begin_period(1, local.users, local.visits)
    assert np.array_equal(slots._of_period(local.users, 0, 8).counts, np.zeros(8))
    with pytest.raises(PrivacyError, match="period"):
        slots.begin_period(1, local.users, local.visits)
    live.visit(100, users=9, seed=1)
    own = slots._of_period(local.users, 0, 9)
    assert own.counts.sum() == 50
    fresh = [m for m in releases(live) if m.period == 1]
    assert [message.slot for message in fresh] == list(range(len(fresh)))
    assert live.ledger.mu > before
    assert live.ledger.period == 1
    assert live.ledger.mu_of_period < mu_of(*live.ledger.claimed)
    count = int(local.counts[0])
    assert local.forget(0) == count > 0
    local.forget(8)
    assert not slots.before.users.counts[0]
    again = deepcopy(slots)
    arrays, values = slots.state()
    again.restore(deepcopy(arrays), deepcopy(values))
    assert np.array_equal(again.before.users.gram, slots.before.users.gram)
    assert np.array_equal(again.before.since, slots.before.since)


def test_users_are_noted_when_they_visit_in_a_period() -> None:
    """As if what was known of everybody had been copied when it began."""
    live = Live(1, period=10.0, few=2)
    live.visit(60)
    local = live.locals[0].server
    slots = local.slots
    first = local.users.copy()
    assert np.array_equal(slots._of_period(local.users, 0, 8).counts, first.counts)
    live.locals[0].forgo(slots.used + PERIOD)
    began = local.users.copy()
    live.visit(25, users=10, seed=2)
    own = slots._of_period(local.users, 0, 10)
    assert len(local.counts) == 10
    expected = local.users.copy()
    for array, old in zip(expected, began, strict=True):
        array[:8] -= old
    assert np.array_equal(own.counts, expected.counts)
    assert own.gram == pytest.approx(expected.gram)
    parts = [slots._of_period(local.users, *part).counts for part in ((0, 4), (4, 10))]
    assert np.array_equal(np.concatenate(parts), own.counts)


def test_periods_go_by_the_clock_and_never_back() -> None:
    live = Live(1, period=10.0, few=2)
    server, start = live.locals[0], 35 * 86_400.0
    assert server.period_start(start) == 3 * PERIOD
    server.forgo(server.period_start(start))
    live.visit(60)
    slots = server.server.slots
    assert slots.period == 3
    assert server.server.period_start(start) == 3 * PERIOD < server.used
    for one in (server, server.server):
        assert one.period_end(start) == one.period_end(start - 1e6) == 3 * PERIOD + slots.plan.releases
    server.forgo(server.period_start(start - 1e6))
    assert slots.period == 3
    assert {message.period for message in releases(live)} == {3}


def test_without_room_in_the_budget_nothing_begins() -> None:
    live = Live()
    live.ledger.claimed = (1e-3, 1e-6)
    live.visit(300)
    assert not releases(live)
    assert live.ledger.exhausted


@pytest.mark.parametrize(
    "change",
    [
        {"types": 5},
        {"slot": 32},
        {"slot": -1},
        {"period": -1},
        {"users": 0},
        {"visits": -1},
        {"sums": b""},
    ],
)
def test_releases_that_no_server_sends_are_refused(change: dict[str, Any]) -> None:
    live = Live()
    live.visit(200)
    last = releases(live)[-1]
    fields = {name: getattr(last, name) for name in Release.__struct_fields__}
    fields |= {"slot": last.slot + 3} | change
    before = str(live.hub.state())
    with pytest.raises(InvalidMessage):
        live.hub.receive(0, Release(**fields))
    assert str(live.hub.state()) == before


def test_a_slot_that_was_used_and_other_messages_are_refused() -> None:
    live = Live()
    live.visit(200)
    last = releases(live)[-1]
    for server, message in ((1, last), (7, last), (0, PhaseStart(1))):
        with pytest.raises(InvalidMessage):
            live.hub.receive(server, message)


def test_types_that_make_no_sense_are_refused_and_change_nothing() -> None:
    live = Live()
    live.visit(200)
    local = live.locals[0].server
    good = first_types(live.family.public)
    far, apart, flat = (deepcopy(good) for _ in range(3))
    far.centres[0, 0] = 1e6
    apart.shares[0] = 0.9
    flat.covariance[0, 0] = -1.0
    nan = deepcopy(good)
    nan.centres[1, 1] = np.nan
    version, told = local.slots.version + 1, str(local.state())
    wrong = [Released(version, 2, 16, 200, 4, write_types(types)) for types in (far, apart, flat, nan)]
    wrong += [
        Released(version, 2, 16, 200, 4, b""),
        Released(version, 2, 0, 200, 4, write_types(good)),
        Released(version, 2, 16, 200, 5, write_types(good)),
        Released(-1, 2, 16, 200, 4, write_types(good)),
    ]
    for message in (*wrong, PhaseStart(1), Shares(1, 0, (), ())):
        with pytest.raises(InvalidMessage):
            local.receive(message)
    assert str(local.state()) == told


def test_a_release_at_types_that_nobody_keeps_says_nothing() -> None:
    """As after a restore of the global server; the answer puts the local server right."""
    live = Live(1, few=2)
    live.visit(100, users=4)
    slots, before = live.locals[0].server.slots, live.hub.types.centres.copy()
    slots.version = 999
    live.locals[0].release(slots.following)
    live.hub.advance()
    assert np.array_equal(live.hub.types.centres, before)
    assert slots.version == live.hub.version


def test_only_so_many_versions_are_kept() -> None:
    live = Live(1, few=2, slots=KEPT + 5)
    live.visit(20, users=4)
    for slot in range(live.locals[0].server.slots.following, KEPT + 5):
        live.locals[0].release(slot)
        live.hub.advance()
    kept = live.hub.state()[1]["kept"]
    assert len(kept) == KEPT
    assert kept[-1] == live.hub.version > KEPT


def test_pairs_that_have_no_proof_are_refused() -> None:
    for unit, level in (("user", "cdp"), ("nobody", "cdp")):
        with pytest.raises(fclub.errors.FclubError):
            make_policy("cdp-fclub-plus", unit=unit, level=level)


def test_without_a_constant_and_with_a_new_user() -> None:
    policy = make_policy("cdp-fclub-plus", **(PAIR | {"few": 4}))
    policy.start(Problem(20, 1, DIM), np.zeros(20, dtype=np.int64), seed=3)
    play(policy, 300)
    assert policy.servers[0].add_user() == 20
    assert policy.servers[0].overview()[0].shared_by == 1


def test_a_server_alone_sends_nothing_and_is_saved_too(tmp_path: Path) -> None:
    first = started([0] * 20, few=4, share=False)
    play(first, 200)
    first.servers[0].forget(3)
    first.save(tmp_path / "saved.npz")
    second = fclub.Policy.load(tmp_path / "saved.npz")
    assert play(first, 100, seed=1) == play(second, 100, seed=1)
    assert first.communications.messages == first.clock.phase, "the starts of phases, in a simulation"
    assert first.servers[0].ids == []
    assert first.servers[0].streams() == {}
    assert first.servers[0].waiting == first.servers[0].counts.sum()


def test_a_global_server_that_has_heard_nothing() -> None:
    hub = Live().hub
    assert hub.overview() == []
    assert hub.reported == 0
    assert hub.next_phase is None
    assert hub.missing == set()
    assert hub.limit(4) is None


def test_servers_agree_on_slots_and_public_constants() -> None:
    def mark(**parameters: Any) -> str:
        return json.dumps(make_family("cdp-fclub-plus", SHAPE, PAIR | parameters).fingerprint())

    assert mark() == mark()
    for change in ({"contribution": 2.0}, {"slots": 5}, {"epsilon": 2.0}, {"level": "interactive"}):
        assert mark(**change) != mark()
    family = Live().family
    price = family.price()
    assert price is not None
    assert price.stream == family.slots.mu
