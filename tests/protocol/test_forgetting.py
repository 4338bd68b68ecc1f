"""A forgotten user is in no sum that leaves later; what has left before cannot be taken back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fclub.core.lattice import snap
from fclub.core.statistics import Statistics
from fclub.core.types import Vector
from fclub.errors import CannotForget
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.rounds import read_told
from fclub.protocol.families import make_family
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, read_statistics
from fclub.protocol.servers import LocalServer

DIM, HALF = 3, float(np.sqrt(0.5))
PRIVATE: dict[str, Any] = {"first_release": 4, "release_ratio": 1.5}
"""Their noise source is silent, so that it does not hide what is released."""


class Recording(InProcessLink):
    sent: list[Message]

    def from_local(self, server: int, message: Message) -> None:
        self.sent.append(message)
        super().from_local(server, message)


class Alone:
    """One live server and its hub, with two users whose observations are kept here as well."""

    def __init__(self, name: str, **parameters: Any) -> None:
        private = PRIVATE if name.startswith("cdp") else {}
        if name == "cdp-fclub-plus":
            private = private | {"unit": "event"}
        self.private = bool(private)
        family = make_family(name, Shape(DIM, 8, HALF), private | parameters)
        self.link = Recording(family.decode)
        self.link.sent = []
        books, rng = family.ledger(seeded=True), np.random.default_rng(0)
        place = Place("0", self.link.uplink(0), NoNoise(), books, rng)
        self.server: LocalServer = family.local_server(place, family.users(0), live=True)
        self.hub = family.global_server([], self.link)
        self.link.connect(self.hub, {0: self.server})
        self.hub.invite(1)
        self.rng = np.random.default_rng(2)
        self.rows = [self.server.add_user(), self.server.add_user()]
        self.seen: list[list[Statistics]] = [[], []]

    def observe(self, user: int) -> None:
        x: Vector = np.append(self.rng.uniform(-0.4, 0.4, DIM - 1), HALF)
        y = float(self.rng.random() < 0.5)
        self.server.observe(self.rows[user], x, y)
        x = snap(x, HALF) if self.private else x
        self.seen[user].append(Statistics(np.outer(x, x), (y - 0.5) * x, 1))
        work = self.server.due()
        if work is not None:
            work()
        self.hub.advance()

    def first(self, user: int, count: int) -> Statistics:
        return sum(self.seen[user][:count], Statistics.zeros(DIM))

    def last_sent(self) -> Statistics:
        """The sum over all clusters of the last message with statistics."""
        parts = next(message.parts() for message in reversed(self.link.sent) if message.parts())
        told = [read_statistics(part.statistics, DIM) for part in parts]
        return sum(told, Statistics.zeros(DIM))


def is_close(one: Statistics, other: Statistics) -> bool:
    return (
        one.count == other.count
        and np.allclose(one.gram, other.gram, atol=1e-6)
        and np.allclose(one.moment, other.moment, atol=1e-6)
    )


def test_the_next_sums_of_a_cluster_are_without_the_user() -> None:
    alone = Alone("cdp-fclub-plus")
    for _ in range(30):
        alone.observe(0)
        alone.observe(1)
    assert alone.hub.released_by(0) > 30
    assert 0 < alone.server.forget(0) <= 30
    for _ in range(100):
        alone.observe(1)
    sent = alone.last_sent()
    assert is_close(sent, alone.first(1, sent.count))
    assert alone.hub.released_by(0) == sent.count


def test_a_user_of_whom_nothing_has_left_leaves_nothing_behind() -> None:
    alone = Alone("cdp-fclub-plus", first_release=50)
    alone.observe(0)
    assert alone.server.forget(0) == 0


def test_one_sum_for_all_keeps_what_it_has_released_and_gets_no_more_of_the_user() -> None:
    alone = Alone("cdp-homo")
    for _ in range(31):
        alone.observe(0)
        alone.observe(1)
    released = alone.hub.released_by(0)
    gone = alone.server.forget(0)
    assert 0 < gone < 31
    for _ in range(100):
        alone.observe(1)
    sent = alone.last_sent()
    assert sent.count > released
    assert is_close(sent, alone.first(0, gone) + alone.first(1, sent.count - gone))


def test_the_next_sums_by_type_are_without_the_user() -> None:
    alone = Alone("fclub-plus")
    for _ in range(20):
        alone.observe(0)
        alone.observe(1)
    bound, items = alone.server.bound(1), np.column_stack([np.eye(2) / 2, [HALF, HALF]])
    spread = np.sqrt(np.einsum("ki,ij,kj->k", items, bound.inverse, items))
    best = np.argmax(items @ bound.theta + bound.radius * spread)
    assert alone.server.recommend(1, items) == best
    assert alone.server.stored(0).count == 20
    assert alone.server.forget(0) == 20
    for _ in range(60):
        alone.observe(1)
    last: Any = alone.link.sent[-1]
    sums = read_told(last.sums, len(last.ids), DIM).sums
    assert round(float(sums.visits.sum())) == round(float(sums.scalars[2])) <= 80
    assert float(sums.scalars[0]) == 1.0


def test_a_type_server_that_has_told_nothing_has_released_nothing() -> None:
    assert Alone("fclub-plus").server.forget(0) == 0


def test_the_printed_algorithm_says_that_it_cannot() -> None:
    alone = Alone("fclub-dc")
    alone.observe(0)
    with pytest.raises(CannotForget, match="adds users up"):
        alone.server.forget(0)
    assert alone.server.stored(0).count == 1
