"""Secure sums live: in the nodes' own stores and frames, equal to the simulation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fclub.cohorts.hub import Stage
from fclub.cohorts.member import State
from fclub.cohorts.members import make_identity, read_members, write_members
from fclub.cohorts.messages import Abort, Call, Go, Message, Roster, Step, Summed, decode, encode
from fclub.environments.synthetic import Synthetic
from fclub.errors import FclubError, InvalidSetting
from fclub.privacy.plan import Plan
from fclub.protocol.messages import encode as encode_message
from fclub.service.link.channel import Cohort, decode_frame
from fclub.service.nodes.cohorts import MemberSide
from fclub.service.nodes.local_node import FromGlobal, LocalNode, slots_of
from fclub.service.nodes.node import Node
from fclub.service.nodes.parts import join_cohorts, local_node, settings_of
from fclub.service.settings import LocalSettings, Secure

from .federation import MEMBERS, Pump, found, model_of, register
from .test_slots import DAY, LEVELS, Kept, a_plan, simulated, visit, world

SECONDS = 20
"""How long a slot is followed, second by second."""


def federation(path: Path, environment: Synthetic, plan: Plan, noise: Kept | None = None) -> Pump:
    found(path, plan.members)
    told = {"plan": plan.encode().decode(), "level": plan.level}
    model = model_of(environment, "cdp-fclub-plus", **told)
    pump = Pump(path, model, plan.members, noise)
    register(pump, environment)
    pump.run()
    return pump


def slot(pump: Pump, plan: Plan, number: int, seconds: int = SECONDS) -> None:
    for second in range(seconds):
        pump.tick(plan.begins[number] + second)


def releases(node: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = node.server.exchange.transcript.releases
    return found


def same_as_simulated(path: Path, servers: int, users: int, rounds: int, level: str) -> Pump:
    environment, noise = world(servers, users), Kept()
    plan = a_plan(servers, users, secure=True, level=level)
    pump = federation(path, environment, plan, noise)
    choices, following = [], 0
    for count in range(1, rounds + 1):
        choices.append(visit(pump, environment))
        while following < plan.releases and count >= round(plan.users * plan.visits[following]):
            slot(pump, plan, following)
            following += 1
    policy, expected = simulated(world(servers, users), plan, noise, choices)
    if level == "interactive":
        assert choices == expected
    assert (
        releases(pump.hub)
        == policy.federation.hub.exchange.transcript.releases
        == releases(pump.locals["s1"])
    )
    assert len(releases(pump.hub)) == plan.releases
    return pump


@LEVELS
def test_secure_sums_equal_the_simulation_of_the_same_visits(tmp_path: Path, level: str) -> None:
    pump = same_as_simulated(tmp_path, servers=3, users=15, rounds=50, level=level)
    for node in pump.locals.values():
        assert node.books.messages() == {"masked": 4}
        assert node.books.unaccounted() == 0
        assert node.exhausted
        assert node.cohort is not None
        assert [charge.presumed for charge in node.cohort.member.record.charges] == [False] * 4
        assert not node.cohort.member.record.outbox
    pump.close()


@pytest.mark.slow
@LEVELS
def test_forty_servers_of_fifty_users_equal_the_simulation(tmp_path: Path, level: str) -> None:
    same_as_simulated(tmp_path, servers=40, users=2000, rounds=8000, level=level).close()


def started(path: Path, members: int = 4) -> tuple[Pump, Plan, Synthetic]:
    environment, plan = world(members, 2 * members), a_plan(members, 2 * members, secure=True)
    pump = federation(path, environment, plan)
    for _ in range(2 * members):
        visit(pump, environment)
    return pump, plan, environment


def restart(pump: Pump, name: str) -> None:
    pump.locals[name].store.close()
    pump.locals[name] = pump.open_local(name)
    pump.run()


def charges(pump: Pump, name: str) -> list[tuple[int, bool]]:
    side = pump.locals[name].cohort
    assert side is not None
    return [(charge.slot, charge.presumed) for charge in side.member.record.charges]


def stage(pump: Pump) -> Stage:
    assert pump.hub.cohort is not None
    view = pump.hub.cohort.hub.view
    assert view is not None
    return view.stage


def test_frames_of_a_member_are_few_and_small(tmp_path: Path) -> None:
    pump, plan, _ = started(tmp_path)
    pump.seen.clear()
    slot(pump, plan, 0)
    assert stage(pump) == Stage.SUMMED
    frames = []
    for data in pump.seen:
        try:
            frame = decode_frame(data, "s2")
        except FclubError:
            continue
        if isinstance(frame, Cohort):
            frames.append((len(data), decode(frame.payload)))
    kinds = [type(message).__name__ for _, message in frames]
    assert kinds == ["Join", "Ready", "Masked"]
    assert sum(size for size, _ in frames) <= 8 * plan.entries + 400
    pump.close()


@pytest.mark.parametrize("second", range(7))
def test_a_member_that_dies_costs_at_most_a_slot(tmp_path: Path, second: int) -> None:
    """Killed and started again in any second of a slot: what it sent is summed, or nothing is."""
    pump, plan, _ = started(tmp_path)
    slot(pump, plan, 0, second)
    restart(pump, "s1")
    for later in range(second, 60):
        pump.tick(plan.begins[0] + later)
    known = charges(pump, "s1")
    assert [number for number, _ in known] == [0], "sent, or presumed to be"
    sums = releases(pump.hub)
    assert [one.slot for one in sums] == [0]
    assert sums[0].servers == (3 if known[0][1] else 4), "others go on without it"
    restart(pump, "s1")
    slot(pump, plan, 1)
    assert [one.servers for one in releases(pump.hub)] == [sums[0].servers, 4]
    ledger = pump.locals["s1"].books.ledger
    assert ledger is not None
    assert ledger.streams["s1"].sequence == 2
    pump.close()


@pytest.mark.parametrize("second", range(7))
def test_a_hub_that_dies_loses_no_sum(tmp_path: Path, second: int) -> None:
    pump, plan, _ = started(tmp_path)
    slot(pump, plan, 0, second)
    pump.hub.store.close()
    pump.hub = pump.open_hub()
    pump.run()
    for later in range(second, 60):
        pump.tick(plan.begins[0] + later)
    assert [one.servers for one in releases(pump.hub)] == [4]
    for name in pump.names:
        assert charges(pump, name) == [(0, False)]
        assert releases(pump.locals[name]) == releases(pump.hub)
    pump.close()


def test_who_is_ready_and_sends_nothing_is_left_out_until_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump, plan, _ = started(tmp_path)
    side = pump.locals["s1"].cohort
    assert side is not None
    real = side.member.receive
    deaf = lambda message: Step() if isinstance(message, Go) else real(message)  # noqa: E731
    monkeypatch.setattr(side.member, "receive", deaf)
    slot(pump, plan, 0)
    assert stage(pump) == Stage.GONE
    monkeypatch.undo()
    slot(pump, plan, 1)
    assert not pump.hub.members.troubles()["s1"].startswith("this store")
    assert [(one.slot, one.servers) for one in releases(pump.hub)] == [(1, 3)]
    pump.hub.members.release("s1")
    pump.run()
    assert pump.hub.members.troubles() == {}
    slot(pump, plan, 2)
    assert [(one.slot, one.servers) for one in releases(pump.hub)] == [(1, 3), (2, 4)]
    pump.close()


@pytest.mark.parametrize("second", range(7))
def test_a_server_that_forgets_somebody_misses_no_slot(tmp_path: Path, second: int) -> None:
    """Else a missing server would tell that somebody was forgotten."""
    pump, plan, _ = started(tmp_path)
    slot(pump, plan, 0, second)
    node = pump.locals["s1"]
    node.users.forget(next(iter(node.users.rows)))
    for later in range(second, 60):
        pump.tick(plan.begins[0] + later)
    assert charges(pump, "s1") == [(0, False)]
    assert [one.servers for one in releases(pump.hub)] == [4]
    pump.close()


def of_a_hostile_hub(
    path: Path,
    say: Callable[[Pump, Roster, Call], list[Message]],
    forget: bool,
    at: float,
    meanwhile: Callable[[Pump, LocalNode], list[tuple[str, bytes]]] | None = None,
) -> list[str]:
    """What s1 answers, having joined, to messages that come so long after a slot has begun.

    Somebody may be forgotten in the same moment, and something come before users are added up again.
    """
    pump, plan, _ = started(path)
    node, caught = pump.locals["s1"], []
    side = node.cohort
    assert side is not None

    def keep(sender: str, payload: bytes) -> None:
        caught.append(decode(payload))
        if isinstance(caught[-1], Call):
            MemberSide.receive(side, sender, payload)

    side.receive = keep  # type: ignore[method-assign]
    slot(pump, plan, 0, 3)
    (call,) = {one for one in caught if isinstance(one, Call)}
    roster = next(one for one in caught if isinstance(one, Roster))
    assert side.member.state == State.JOINED
    del side.receive
    pump.away.add("s1")
    pump.time = plan.begins[0] + at
    if forget:
        node.users.forget(next(iter(node.users.rows)))
    for message in say(pump, roster, call):
        side.receive("global", encode(message))
    side.run()
    frames = pump.commit(node)
    if meanwhile is not None:
        frames += meanwhile(pump, node)
    for second in range(4):
        pump.time = plan.begins[0] + at + second
        node.tick()
        frames += pump.commit(node)
    sent = [decode_frame(data, "s1") for _, data in frames]
    pump.close()
    return [type(decode(one.payload)).__name__ for one in sent if isinstance(one, Cohort)]


def paused(pump: Pump, roster: Roster, call: Call) -> list[Message]:
    """The hub asks where this server stands, and gives no answer to its question."""
    pump.locals["s1"].sessions.knocked()
    return [roster]


def in_a_row(pump: Pump, roster: Roster, call: Call) -> list[Message]:
    assert pump.hub.cohort is not None
    rho = pump.hub.cohort.hub.view.roster  # type: ignore[union-attr]
    return [roster, Abort(rho), structs.replace(call, nonce=bytes(16))]


def in_a_flood(pump: Pump, roster: Roster, call: Call) -> list[Message]:
    return [roster, *[Go(bytes(32))] * 5000, structs.replace(call, nonce=bytes(16))]


def plainly(pump: Pump, roster: Roster, call: Call) -> list[Message]:
    return [roster]


def a_release(pump: Pump, node: LocalNode) -> list[tuple[str, bytes]]:
    """The hub tells a population that follows from sums of its own making."""
    exchange = slots_of(node)
    share, sums = exchange.plan.share(3), bytes(8 * exchange.plan.entries)
    (told,) = exchange.transcript.after(0, 3, share, sums).releases
    node.journal.do(FromGlobal(encode_message(told)))
    return pump.commit(node)


def a_session(pump: Pump, node: LocalNode) -> list[tuple[str, bytes]]:
    """The hub begins one anew, and says nothing of the cohort."""
    pump.hub.peers["s1"].marked, pump.hub.cohort = True, None
    node.sessions.knocked()
    frames = new = pump.commit(node)
    while new:
        for _, data in new:
            with suppress(FclubError):
                pump.hub.receive("s1", data)
        for peer, data in pump.commit(pump.hub):
            if peer == "s1":
                node.receive("global", data)
        new = pump.commit(node)
        frames += new
    return frames


@pytest.mark.parametrize(
    ("say", "at", "meanwhile", "answers"),
    [
        (plainly, 3.0, None, ["Ready"]),
        (paused, 2000.0, None, ["Ready"]),
        (in_a_row, 3.0, None, ["Ready", "Join"]),
        (plainly, 3599.0, None, []),
        (in_a_flood, 3.0, None, ["Ready"]),
        (plainly, 3.0, a_release, ["Ready"]),
        (plainly, 3.0, a_session, ["Ready"]),
    ],
    ids=["at once", "paused", "in a row", "at the end", "in a flood", "a release", "a session"],
)
def test_what_is_answered_does_not_tell_that_somebody_was_forgotten(
    tmp_path: Path, say: Any, at: float, meanwhile: Any, answers: list[str]
) -> None:
    told = []
    for forget in (False, True):
        path = tmp_path / str(forget)
        path.mkdir()
        told.append(of_a_hostile_hub(path, say, forget, at, meanwhile))
    assert told == [answers, answers]


def test_that_a_slot_is_summed_is_heard_while_something_waits(tmp_path: Path) -> None:
    """Else what is said again, because it seems not to be heard, would tell that something waits."""
    pump, plan, _ = started(tmp_path)
    slot(pump, plan, 0)
    side = pump.locals["s1"].cohort
    assert side is not None
    side._too_early = lambda message: isinstance(message, Roster)  # type: ignore[method-assign]
    for message in (Roster(()), Summed(bytes(32))):
        side.receive("global", encode(message))
    assert side.next() is not None
    assert [type(message) for _, message in side.waiting] == [Roster]
    pump.close()


@pytest.mark.parametrize("behind", [("s1",), ("s0", "s1", "s2", "s3")])
def test_clocks_that_are_behind_miss_no_slot(tmp_path: Path, behind: tuple[str, ...]) -> None:
    """The Call of a slot comes before its time there."""
    pump, plan, _ = started(tmp_path)
    for name in behind:
        node = pump.locals[name]
        node._latest, node._clock = pump.time - 2.0, lambda: pump.time - 2.0
    for number in range(3):
        slot(pump, plan, number)
    assert [(one.slot, one.servers) for one in releases(pump.hub)] == [(0, 4), (1, 4), (2, 4)]
    pump.close()


def test_a_sum_without_the_forgotten_user_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """Also where it was added up again before the member looked."""
    pump, plan, _ = started(tmp_path)
    slot(pump, plan, 0, 2)
    node = pump.locals["s1"]
    side = node.cohort
    assert side is not None
    for user in list(node.users.rows):
        node.users.forget(user)
    node.tick()
    while (part := node.part()) is not None:
        part()
    side.next()
    prepared = side.member._prepared
    assert prepared is not None
    assert not prepared.vector.any()
    pump.close()


def test_a_hub_that_claims_slots_is_not_believed(tmp_path: Path) -> None:
    """A slot is charged once, whether a session begins between Ready and Go or long before."""
    pump, plan, _ = started(tmp_path)
    side, held = pump.locals["s1"].cohort, []
    assert side is not None

    def hold(sender: str, payload: bytes) -> None:
        if isinstance(decode(payload), Go):
            held.append((sender, payload))
        else:
            MemberSide.receive(side, sender, payload)

    def claim(slots: int) -> None:
        peer = pump.hub.peers["s1"]
        peer.marked = True
        pump.hub.server.used_by = lambda server: slots  # type: ignore[method-assign]
        pump.locals["s1"].sessions.knocked()
        pump.run()
        del pump.hub.server.used_by

    pump.time = plan.begins[0] - 10 * DAY
    claim(plan.releases)
    side.receive = hold  # type: ignore[method-assign]
    slot(pump, plan, 0, 6)
    claim(1)
    del side.receive
    assert held
    assert side.member.state == State.READY
    side.receive(*held[0])
    pump.run()
    for number in range(1, plan.releases):
        slot(pump, plan, number)
    ledger = pump.locals["s1"].books.ledger
    assert ledger is not None
    assert charges(pump, "s1") == [(number, False) for number in range(plan.releases)]
    assert ledger.streams["s1"].sequence == plan.releases
    restart(pump, "s1")
    pump.close()


def test_member_and_exchange_have_the_same_window(tmp_path: Path) -> None:
    """Whole seconds, though a plan has parts of them: what is left out can not be sent any more."""
    visits = (0.600005, 1.2, 2.0, 3.0)
    environment, plan = world(4, 8), a_plan(4, 8, secure=True, visits=visits)
    pump = federation(tmp_path, environment, plan)
    node = pump.locals["s1"]
    assert node.cohort is not None
    (cohort,) = node.cohort.member.record.plans
    exchange = slots_of(node)
    assert exchange.times == tuple(map(float, cohort.times)) != plan.begins
    assert exchange.window == cohort.window
    pump.close()


def test_a_forgotten_user_is_in_no_sum(tmp_path: Path) -> None:
    pump, plan, environment = started(tmp_path)
    for _ in range(40):
        visit(pump, environment)
    slot(pump, plan, 0, 1)
    node, sums = pump.locals["s1"], []
    exchange: Any = node.server.exchange
    for user in (None, *node.users.rows):
        if user is not None:
            node.users.forget(user)
            assert exchange.prepared is None, "added up again before anything leaves"
        pump.tick(plan.begins[0])
        sums.append(exchange.prepared.sums)
    assert any(sums[0] != sums[1]), "two users were there"
    assert any(sums[1])
    assert not any(sums[2])
    pump.close()


def test_a_restored_store_joins_no_slot_again(tmp_path: Path) -> None:
    pump, plan, _ = started(tmp_path)
    pump.locals["s0"].store.close()
    old = (tmp_path / "s0.db").read_bytes()
    pump.locals["s0"] = pump.open_local("s0")
    pump.run()
    slot(pump, plan, 0)
    pump.locals["s0"].store.close()
    for rest in tmp_path.glob("s0.db*"):
        rest.unlink()
    (tmp_path / "s0.db").write_bytes(old)
    pump.locals["s0"] = pump.open_local("s0")
    pump.run()
    slot(pump, plan, 0, 2 * SECONDS)
    assert charges(pump, "s0") == [(0, True)]
    assert [one.servers for one in releases(pump.hub)] == [4]
    slot(pump, plan, 1)
    assert charges(pump, "s0") == [(0, True), (1, False)]
    pump.close()


@pytest.mark.parametrize("second", [0, 1, 3, SECONDS])
def test_a_new_list_is_taken_over_without_a_restart(tmp_path: Path, second: int) -> None:
    """In any second of a slot: that one may be lost, and the next is summed with the new list."""
    pump, plan, _ = started(tmp_path)
    slot(pump, plan, 0, second)
    pump.away.add("new")
    held = read_members(tmp_path / MEMBERS)
    write_members(held.next([make_identity("new", "New Ltd").entry], []), tmp_path / MEMBERS)
    for node in (pump.hub, *pump.locals.values()):
        reread(node, tmp_path)
    pump.run()
    for later in range(second, SECONDS):
        pump.tick(plan.begins[0] + later)
    slot(pump, plan, 1)
    assert stage(pump) == Stage.SUMMED
    assert pump.hub.cohort is not None
    assert pump.hub.cohort.hub.members.epoch == 2
    write_members(held, tmp_path / MEMBERS)
    for node in pump.locals.values():
        reread(node, tmp_path)
    pump.run()
    for node in pump.locals.values():
        assert node.cohort is not None
        kept = node.cohort.member.record.members
        assert kept is not None
        assert kept.epoch == 2, "lists never go back"
    pump.close()


def reread(node: Node, path: Path) -> None:
    assert node.cohort is not None
    node.cohort.accept(read_members(path / MEMBERS))


def test_a_secure_plan_needs_an_identity_and_a_list(tmp_path: Path) -> None:
    plan, environment = a_plan(3, 9, secure=True), world(3, 9)
    found(tmp_path, 3)
    told = {"plan": plan.encode().decode(), "level": plan.level}
    model = model_of(environment, "cdp-fclub-plus", **told)
    members, other = str(tmp_path / "members.json"), str(tmp_path / "s1.key")
    for given, says in (
        (Secure(), "secure.members"),
        (Secure(members=members), "secure.identity"),
        (Secure(members=members, identity=other), "expected the key of s0, got that of s1"),
    ):
        store = str(tmp_path / "s0.db")
        settings = LocalSettings(model=model, name="s0", store=store, secure=given)
        node = local_node(settings)
        with pytest.raises(InvalidSetting, match=says):
            join_cohorts(node, settings)
        node.store.close()
    assert settings_of(tmp_path / "s0.db").model == model, "commands on a store need no key"
