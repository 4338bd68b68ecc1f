"""Detections of clusters beside serving: whatever happens meanwhile, nothing is lost or told twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.protocol.alone import DIM, HALF, USERS, Alone

from fclub.core.plus.rounds import feedback
from fclub.core.plus.rounds import replace as replace_in
from fclub.errors import CannotReplace
from fclub.protocol.plus import detection as detecting
from fclub.protocol.plus.detection import Detection
from fclub.protocol.plus.local_server import PlusLocal
from fclub.protocol.plus.messages import Digest, Shares
from fclub.protocol.plus.type_local import TypeLocal
from fclub.protocol.seam import Beginning

EVENT = {"unit": "event", "first_release": 3, "release_ratio": 1.5}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "silent": ("cdp-fclub-plus", {"few": USERS}),
    "cdp": ("cdp-fclub-plus", EVENT | {"level": "cdp"}),
    "transcript": ("cdp-fclub-plus", EVENT | {"level": "transcript"}),
}
PRIVATE = ["cdp", "transcript"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detecting, "RELEASES", 2)


def alone(kind: str, in_parts: bool = True) -> Alone:
    name, parameters = KINDS[kind]
    return Alone(name, in_parts, **parameters)


def sampled(kind: str) -> tuple[Alone, PlusLocal]:
    """A detection is found and not applied yet."""
    one = copied(kind)
    one.server.part()()
    return one, clusters(one)


def copied(kind: str) -> Alone:
    """All that is due was released, and the sampler is next."""
    one = alone(kind)
    one.visit(40)
    one.work_on()
    while detection(clusters(one)).following is not None:
        one.server.part()()
    return one


def clusters(one: Alone) -> PlusLocal:
    server = getattr(one.server, "server", one.server)
    assert isinstance(server, PlusLocal)
    return server


def detection(server: PlusLocal) -> Detection:
    assert server._detection is not None
    return server._detection


def item(one: Alone) -> np.ndarray:
    return np.append(one.rng.uniform(-0.4, 0.4, DIM - 1), HALF)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_give_the_same_bits_as_all_at_once(kind: str) -> None:
    """Both servers send the same bytes for the same price, too."""
    one, other = alone(kind), alone(kind, in_parts=False)
    for each in (one, other):
        each.visit(200)
    assert one.same_as(other)
    assert one.link.sent == other.link.sent
    assert len(one.link.sent) > 3 or kind == "silent"
    if one.ledger is not None:
        assert one.ledger.events == other.ledger.events
        assert len(one.ledger.events) > 10 or kind == "silent"
    assert one.noise.bit_generator.state == other.noise.bit_generator.state


@pytest.mark.parametrize("parts", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_is_restored_between_any_two_parts(kind: str, parts: int) -> None:
    first = alone(kind)
    first.visit(30)
    first.work_on()
    for _ in range(parts):
        first.do_parts(1)
        first.observe(3)
    second = alone(kind).twin_of(first)
    assert first.same_as(second)
    assert first.server.busy == second.server.busy
    sent = len(first.link.sent)
    for each in (first, second):
        each.finish()
        each.visit(60)
    assert first.same_as(second)
    assert first.link.sent[sent:] == second.link.sent


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_observed_meanwhile_conditions_what_was_found(kind: str) -> None:
    """As if the found Gaussian had been there when the user observed, or a reward was replaced."""
    one, server = sampled(kind)
    known, found = server.serving, detection(server).found
    assert found is not None
    x, y, z = (item(one) for _ in range(3))
    server.observe(1, x, 1.0)
    server.observe(1, y, 0.0)
    server.withhold(USERS - 1, z, 1.0)
    assert server.unsent == (kind in PRIVATE)
    server.unsent = False  # a release of another phase, so that rewards can still be replaced
    server.replace(1, x, 1.0, 0.0)
    server.replace(5, z, 1.0, 0.5)
    one.server.part()()
    expected = known._replace(
        users=found.users.copy(),
        covariance=found.covariance.copy(),
        vector=found.vector.copy(),
        theta=found.theta.copy(),
        squares=known.squares.copy(),
        weight=np.full(USERS, 1.0 / server.variance),
    )
    feedback(expected, 1, x, 0.0)
    feedback(expected, 1, y, 0.0)
    feedback(expected, USERS - 1, z, 1.0)
    replace_in(expected, 5, z, 1.0, 0.5)
    for name in ("theta", "covariance", "vector", "weight"):
        ours, theirs = getattr(server.serving, name), getattr(expected, name)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        others = [row for row in range(USERS) if row not in (1, 5, USERS - 1)]
        assert np.array_equal(ours[others], theirs[others]), "to the bit"
    np.testing.assert_allclose(server.users.moment, expected.users.moment, rtol=1e-12)


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_newcomer_stays_what_it_is_in_the_largest_cluster(kind: str) -> None:
    one, server = sampled(kind)
    row = one.server.add_user()
    one.observe(row)
    theta, covariance = server.theta[row].copy(), server.serving.covariance[row].copy()
    one.server.part()()
    assert np.array_equal(server.theta[row], theta)
    assert np.array_equal(server.serving.covariance[row], covariance)
    assert server.serving.weight[row] == 1.0 / server.variance
    assert server.labels[row] == np.bincount(server.labels[:-1]).argmax()
    like = int(np.flatnonzero(server.labels == server.labels[row])[0])
    assert np.array_equal(server.joined[row], server.joined[like])
    one.finish()
    assert sum(cluster.users for cluster in server.overview()) == USERS + 1


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_forgotten_meanwhile_leaves_no_trace(kind: str, done: bool) -> None:
    """The detection begins again, whether or not its computation has ended."""
    one = copied(kind)
    server, random = clusters(one), one.server.state()[1]["rng"]
    sample = one.server.part()
    if done:
        sample()
    one.server.forget(3)
    assert not any(name.startswith("found.") for name in one.server.state()[0])
    twin = alone(kind).twin_of(one)
    if not done:
        sample()
    assert one.same_as(twin)
    assert one.server.state()[1]["rng"] == random
    one.server.part()()
    found = detection(server).found
    assert found is not None
    assert not found.users.gram[3].any()
    one.finish()
    assert not server.users.gram[3].any()
    assert server.releases.released.counts[3] == 0
    assert not one.server.busy


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_forgotten_while_others_release_stops_nothing(kind: str) -> None:
    one = alone(kind)
    one.visit(40)
    one.work_on()
    one.server.forget(3)
    assert detection(clusters(one)).following == 0
    one.finish()
    assert clusters(one).releases.released.counts[3] == 0


def test_an_answer_that_comes_meanwhile_counts_from_the_next_detection_on() -> None:
    one, server = sampled("cdp")
    other = alone("cdp").twin_of(one)
    answer = Shares(9, (), (), (), 2.5)
    one.server.receive(answer)
    for each in (one, other):
        each.server.part()()
        each.server.receive(answer)  # to the report, of both
    assert one.same_as(other)
    assert server.outside.gamma == 2.5


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_due_while_a_detection_is_under_way(kind: str) -> None:
    one, server = sampled(kind)
    assert server.clock is not None
    phase = server.clock.phase
    while server.observations < server.clock.next_start:
        one.observe(2)
    assert one.server.due() is None
    one.finish()
    assert server.clock.phase == phase
    assert one.server.due() is not None


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_paused_meanwhile_learns_and_releases_nothing(kind: str) -> None:
    one, server = sampled(kind)
    sent, drawn = len(one.link.sent), one.noise.bit_generator.state
    found = detection(server).found
    assert found is not None
    one.server.pause()
    one.finish()
    assert len(one.link.sent) == sent
    assert one.noise.bit_generator.state == drawn
    assert np.array_equal(server.labels, found.labels)
    one.server.go_on()
    assert not one.server.busy
    one.visit(40)
    assert len(one.link.sent) > sent or kind == "silent"


def releasing(kind: str) -> tuple[Alone, PlusLocal]:
    """Some of what is due was released, and nothing of it was sent."""
    one = alone(kind)
    while not getattr(one.server, "unsent", False):
        one.work_on()
        one.server.part()()
        if not one.server.unsent:
            one.finish()
    return one, clusters(one)


@pytest.mark.parametrize("kind", PRIVATE)
def test_what_was_released_before_a_pause_is_sent_when_a_session_begins(kind: str) -> None:
    """Until then no reward can be replaced: it may be in what was released."""
    one, server = releasing(kind)
    sent, steps = len(one.link.sent), server.releases.state()["steps"].copy()
    one.server.pause()
    one.finish()
    assert not one.server.busy
    assert len(one.link.sent) == sent
    assert np.array_equal(server.releases.state()["steps"], steps), "nothing more was released"
    before = server.users.moment.copy()
    twin = alone(kind).twin_of(one)
    for each in (one, twin):
        with pytest.raises(CannotReplace, match="about to be sent"):
            each.server.replace(0, item(one), 1.0, 0.0)
    assert np.array_equal(server.users.moment, before)
    one.server.begin(Beginning())
    assert len(one.link.sent) == sent + 1
    assert sum(server.told.values()) == server.releases.released.counts.sum()
    one.server.replace(0, item(one), 1.0, 0.0)


@pytest.mark.parametrize("kind", PRIVATE)
def test_each_observation_is_released_once_if_users_come_between_releases(kind: str) -> None:
    one, server = releasing(kind)
    for row in range(USERS):
        one.observe(row)
    one.finish()
    one.visit(60)
    assert one.ledger is not None
    events = sum(event.observations for event in one.ledger.events)
    covered = server.releases.state()["covered.counts"]
    assert events == covered.sum()
    assert (covered <= server.counts).all()
    assert one.hub.reported == events


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_session_that_begins_meanwhile_hears_twice(kind: str) -> None:
    """Of what was released so far, and of what follows."""
    one, server = sampled(kind)
    sent = len(one.link.sent)
    one.server.begin(Beginning())
    one.finish()
    told = one.link.sent[sent:]
    assert [type(message) for message in told] == [Digest, Digest]
    assert sum(server.told.values()) == one.hub.reported


@pytest.mark.parametrize("kind", PRIVATE)
def test_an_old_store_closes_its_streams_between_two_releases(kind: str) -> None:
    one, server = releasing(kind)
    one.server.begin(Beginning(local_old=True))
    closed = server.releases.closed
    assert closed == server.observations
    one.finish()
    assert server.releases.released.counts.sum() == 0


def test_who_grows_meanwhile_learns_types_from_then_on() -> None:
    one, _ = sampled("silent")
    one.server.add_user()
    assert isinstance(one.server.server, TypeLocal)
    assert one.server.server.in_parts
    assert not one.server.busy
    one.visit(60)
    assert int(one.server.counts.sum()) == one.server.server.observations
