"""Streams beside serving: whatever happens meanwhile, nothing is lost, released or told twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.parts import present
from tests.protocol.alone import DIM, HALF, USERS, Alone

from fclub.errors import CannotReplace
from fclub.protocol.exchanges import user_streams
from fclub.protocol.exchanges.user_streams import Digest, ReleasedUser, Shares
from fclub.protocol.interfaces import learner
from fclub.protocol.interfaces.exchange import Beginning

LEVELS = ["cdp", "transcript"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_streams, "RELEASES", 2)
    monkeypatch.setattr(learner, "PART", 5)


def alone(level: str = "transcript", in_parts: bool = True) -> Alone:
    rule: dict[str, Any] = {"unit": "event", "first_release": 3, "release_ratio": 1.5}
    return Alone("cdp-fclub-plus", in_parts, level=level, **rule)


def releasing() -> Alone:
    """Some of what is due was released, and nothing of it was sent."""
    one = alone()
    while not one.server.exchange.unsent:
        one.work_on()
        one.server.part()()
        if not one.server.exchange.unsent:
            one.finish()
    assert one.server.busy
    return one


def item(one: Alone) -> np.ndarray:
    return np.append(one.rng.uniform(-0.4, 0.4, DIM - 1), HALF)


@pytest.mark.parametrize("level", LEVELS)
def test_parts_give_the_same_bits_as_all_at_once(level: str) -> None:
    """Both servers send the same bytes for the same price, too."""
    one, other = alone(level), alone(level, in_parts=False)
    for each in (one, other):
        each.visit(200)
    assert one.same_as(other)
    assert one.link.sent == other.link.sent
    assert len(one.link.sent) > 3
    assert present(one.ledger).events == present(other.ledger).events
    assert len(present(one.ledger).events) > 10
    assert one.noise.bit_generator.state == other.noise.bit_generator.state


@pytest.mark.parametrize("parts", range(9))
def test_a_server_is_restored_between_any_two_parts(parts: int) -> None:
    first = alone()
    first.visit(30)
    first.work_on()
    for _ in range(parts):
        first.do_parts(1)
        first.observe(3)
    second = alone().twin_of(first)
    assert first.same_as(second)
    assert first.server.busy == second.server.busy
    sent = len(first.link.sent)
    for each in (first, second):
        each.finish()
        each.visit(60)
    assert first.same_as(second)
    assert first.link.sent[sent:] == second.link.sent


def test_a_server_is_restored_before_it_has_ever_added_anybody_up() -> None:
    first = alone()
    first.work_on()
    assert first.server.exchange.releasing
    second = alone().twin_of(first)
    assert first.same_as(second)
    for each in (first, second):
        each.finish()
        each.visit(60)
    assert first.same_as(second)


def test_who_is_forgotten_meanwhile_leaves_no_trace() -> None:
    """Neither while others release nor while users are added up."""
    one = releasing()
    one.server.forget(3)
    one.finish()
    number = one.server.exchange.numbers[3]
    assert number == USERS
    assert one.server.exchange.releases.released.counts[3] == 0
    assert not one.server.learner.users.gram[3].any()
    one.work_on()
    while one.server.exchange.releasing:
        one.server.part()()
    one.server.forget(4)
    one.finish()
    assert not one.server.learner.users.gram[4].any()
    assert not one.server.busy
    one.visit(200)
    assert one.server.exchange.told[number] == one.server.exchange.releases.released.counts[3] > 0


def test_who_told_nothing_has_nothing_to_take_back() -> None:
    one = alone()
    one.observe(3)
    assert one.server.forget(3) == 0
    one.visit(60)
    released = int(one.server.exchange.releases.released.counts[3])
    assert one.server.forget(3) == released > 0


def guest(one: Alone, number: int, servers: int = 1) -> Shares:
    """What a server hears of another one that has released one user."""
    digests = [message for message in one.link.sent if isinstance(message, Digest) and message.news]
    entry = digests[-1].news[0]
    return Shares(9, servers, (number,), (ReleasedUser(number, entry.statistics, entry.noise),))


@pytest.mark.parametrize("releasing_now", [False, True])
def test_an_answer_that_comes_meanwhile_counts_at_once(releasing_now: bool) -> None:
    one = alone()
    one.visit(60)
    one.work_on()
    while not releasing_now and one.server.exchange.releasing:
        one.do_parts(1)
    one.server.receive(guest(one, 5, servers=3))
    twin = alone().twin_of(one)
    one.link.deaf = twin.link.deaf = True
    for each in (one, twin):
        each.finish()
        assert each.server.learner.sharing == 3
        assert each.server.learner.others.sums.users.sum() == pytest.approx(1.0)
        assert sum(row.others for row in each.server.overview()) > 0
    assert one.same_as(twin)
    one.server.receive(Shares(10, 0, (), ()))
    one.visit(30)
    assert one.server.learner.others.sums.users.sum() == 0.0


def test_nothing_else_is_due_while_a_phase_is_under_way() -> None:
    one = releasing()
    phase = one.server.exchange.clock.phase
    while one.server.learner.observations < one.server.exchange.clock.next_start:
        one.observe(2)
    assert one.server.due() is None
    one.finish()
    assert one.server.exchange.clock.phase == phase
    assert one.server.due() is not None


def test_who_is_paused_meanwhile_releases_nothing() -> None:
    one = alone()
    one.visit(40)
    one.work_on()
    sent, drawn = len(one.link.sent), one.noise.bit_generator.state
    one.server.pause()
    one.finish()
    assert len(one.link.sent) == sent
    assert one.noise.bit_generator.state == drawn
    one.server.go_on()
    assert not one.server.busy
    one.visit(40)
    assert len(one.link.sent) > sent


def test_what_was_released_before_a_pause_is_sent_when_a_session_begins() -> None:
    """Until then no reward can be replaced: it may be in what was released."""
    one = releasing()
    server, sent = one.server, len(one.link.sent)
    steps = server.exchange.releases.state()["steps"].copy()
    server.pause()
    one.finish()
    assert not server.busy
    assert server.final_once_sent
    assert len(one.link.sent) == sent
    assert np.array_equal(server.exchange.releases.state()["steps"], steps), "nothing more was released"
    before = server.learner.users.moment.copy()
    twin = alone().twin_of(one)
    for each in (one, twin):
        with pytest.raises(CannotReplace, match="about to be sent"):
            each.server.replace(0, item(one), 1.0, 0.0)
    assert np.array_equal(server.learner.users.moment, before)
    server.begin(Beginning())
    assert len(one.link.sent) == sent + 1
    assert sum(server.exchange.told.values()) == server.exchange.releases.released.counts.sum()
    server.replace(0, item(one), 1.0, 0.0)
    assert not np.array_equal(server.learner.users.moment, before)


def test_each_observation_is_released_once_if_users_come_between_releases() -> None:
    one = releasing()
    for row in range(USERS):
        one.observe(row)
    one.finish()
    one.visit(60)
    events = int(np.sum([event.observations for event in present(one.ledger).events]))
    covered = one.server.exchange.releases.state()["covered.counts"]
    assert events == covered.sum()
    assert (covered <= one.server.counts).all()
    assert one.hub.reported == events
    assert one.server.status().waiting == one.server.learner.observations - events


def test_what_is_withheld_is_never_released() -> None:
    one = alone()
    for _ in range(6):
        one.server.observe(2, item(one), 1.0, releasable=False)
    one.visit(12)
    assert one.server.exchange.releases.closed == 6
    assert one.server.exchange.releases.released.counts[2] == 0


def test_an_old_store_closes_its_streams_between_two_releases() -> None:
    one = releasing()
    one.server.begin(Beginning(local_old=True))
    assert one.server.exchange.releases.closed == one.server.learner.observations
    one.finish()
    assert one.server.exchange.releases.released.counts.sum() == 0


def test_a_stream_is_paid_for_once_it_was_told() -> None:
    one = alone()
    assert one.hub.paid_by(0) == 0.0
    assert one.server.status().outlook.at == one.server.exchange.clock.next_start
    one.visit(60)
    assert one.hub.paid_by(0) == 1.0
    assert one.server.status().outlook.now == one.server.learner.observations
    assert one.server.status().streams == present(one.ledger).streams
    assert one.family.price() is not None


def test_servers_that_expect_other_noise_are_told_apart() -> None:
    one, other = alone(), Alone("cdp-fclub-plus", unit="event", first_release=9)
    assert one.family.fingerprint() == alone().family.fingerprint() != other.family.fingerprint()
