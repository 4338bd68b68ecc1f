"""The exact exchange: when sums leave, what comes back, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.foreign.src.shared_mean import SharedMean

from fclub.errors import InvalidMessage
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.exact import Contribution, ExactGlobal, ExactLocal, Total
from fclub.protocol.interfaces.exchange import Beginning, GlobalExchange
from fclub.protocol.interfaces.family import Family, Place, Shape
from fclub.protocol.interfaces.learner import Job
from fclub.protocol.interfaces.overview import TYPE
from fclub.protocol.messages import Message, PhaseStart, encode
from fclub.protocol.rows.exact import ExactFamily
from fclub.protocol.servers import LocalServer

DIM = 2
SIZE = DIM * (DIM + 1)
X = np.array([0.6, 0.8])


class Sent:
    """Both ends of a link that only remembers."""

    def __init__(self) -> None:
        self.up: list[Message] = []
        self.down: list[tuple[int, Message]] = []

    def to_global(self, message: Message) -> None:
        self.up.append(message)

    def to_local(self, server: int, message: Message) -> None:
        self.down.append((server, message))


def family() -> ExactFamily:
    return SharedMean().make_family(Shape(DIM, 10))


def local(link: Sent, live: bool = True, users: int = 0) -> tuple[LocalServer, ExactLocal]:
    place = Place("0", link, NoNoise(), None, np.random.default_rng(0))
    server = family().local_server(place, family().users(users), live)
    assert isinstance(server.exchange, ExactLocal)
    return server, server.exchange


def observe(server: LocalServer, times: int, reward: float = 1.0) -> None:
    for _ in range(times):
        server.observe(0, X, reward)
        begin = server.due()
        if begin is not None:
            begin()


def work(server: LocalServer) -> None:
    while server.busy:
        server.part()()


def numbers(*values: float) -> bytes:
    return np.array(values, dtype="<f8").tobytes()


def sums_of(times: int) -> bytes:
    return numbers(*(times * np.outer(X, X)).ravel(), *(times * X))


def test_sums_leave_when_the_count_calls_for_it() -> None:
    link = Sent()
    server, exchange = local(link)
    server.add_user()
    assert server.due() is None
    observe(server, 25)
    counts = [one.observations for one in link.up if isinstance(one, Contribution)]
    assert counts == [1, 20]
    last = link.up[-1]
    assert isinstance(last, Contribution)
    np.testing.assert_allclose(np.frombuffer(last.sums), np.frombuffer(sums_of(20)))
    assert last.count().uploads == 1
    assert (server.status().waiting, server.status().outlook.now, server.status().outlook.at) == (
        5,
        25,
        30,
    )
    assert exchange.forget(0) == 25


def test_in_a_simulation_a_phase_asks_for_sums() -> None:
    link = Sent()
    server, exchange = local(link, live=False, users=1)
    assert server.due() is None
    server.receive(PhaseStart(1))
    assert link.up == [], "nothing is known"
    server.observe(0, X, 1.0)
    server.receive(PhaseStart(2))
    server.receive(PhaseStart(3))
    assert len(link.up) == 1, "what is known outside is not sent again"
    assert (exchange.resume(), server.status().outlook.at) == (None, None)
    arrays, values = server.state()
    again, _ = local(link, live=False, users=1)
    again.restore(arrays, values)
    np.testing.assert_equal(again.state(), (arrays, values))


def test_while_both_sides_do_not_agree_nothing_leaves() -> None:
    link = Sent()
    server, exchange = local(link)
    server.add_user()
    observe(server, 1)
    server.in_parts = True
    observe(server, 19)
    assert server.busy
    server.pause()
    work(server)
    observe(server, 20)
    assert len(link.up) == 1
    assert exchange.forget(0) == 40
    server.begin(Beginning(global_lost=True))
    assert exchange.forget(0) == 0, "nothing is known outside"
    server.go_on()
    work(server)
    assert isinstance(link.up[-1], Contribution)
    assert (len(link.up), link.up[-1].observations) == (2, 40)
    exchange.withhold(0, server.stored(0))
    assert exchange.resume() is None


def test_types_are_known_to_all() -> None:
    server, exchange = local(Sent())
    server.add_user()
    own = server.learner.overview()
    typed = [replace(one, kind=TYPE) for one in own]
    assert exchange.describe(typed) == typed, "before anything was sent"
    observe(server, 1)
    assert exchange.describe(own) == own
    assert [(one.cluster, one.group) for one in exchange.describe(typed)] == [(0, 0)]


def test_a_local_server_refuses_what_cannot_be() -> None:
    server, _ = local(Sent())
    before = server.state()
    for message in (
        Total(numbers(1.0), 1),
        Total(numbers(*[np.nan] * SIZE), 1),
        Total(numbers(*[1.0] * SIZE), 0),
        Contribution(numbers(*[1.0] * SIZE), 1),
        PhaseStart(1),
    ):
        with pytest.raises(InvalidMessage):
            server.receive(message)
    np.testing.assert_equal(server.state(), before)
    server.receive(Total(numbers(*[1.0] * SIZE), 3))
    assert Total(b"", 1).count().downloads == 1


def test_the_global_server_adds_up_all_others() -> None:
    link = Sent()
    exchange = ExactGlobal([1, 0, 2], SIZE, link)
    side: GlobalExchange = exchange
    assert (side.overview(), side.account(0)) == ([], (0, 0.0, 0))
    for server in (0, 1):
        exchange.receive(server, Contribution(numbers(*[1.0 + server] * SIZE), 5))
    exchange.advance(overdue=False)
    exchange.advance(overdue=True)
    assert link.down == [
        (0, Total(numbers(*[2.0] * SIZE), 1)),
        (1, Total(numbers(*[1.0] * SIZE), 1)),
        (2, Total(numbers(*[3.0] * SIZE), 2)),
    ]
    assert (exchange.status().reported, exchange.account(1).released) == (10, 5)
    assert exchange.overview()[0].members == [(0, 0), (1, 0)]
    again = ExactGlobal([0, 1, 2], SIZE, link)
    again.restore(*exchange.state())
    np.testing.assert_equal(again.state(), exchange.state())


def test_a_new_session_counts_nothing_twice() -> None:
    link = Sent()
    exchange = ExactGlobal([], SIZE, link)
    exchange.invite(2)
    exchange.start_session(0, Beginning())
    exchange.advance(overdue=False)
    assert link.down == [], "nobody has sent anything"
    exchange.receive(0, Contribution(numbers(*[1.0] * SIZE), 5))
    exchange.start_session(0, Beginning(local_new=True))
    assert exchange.status().reported == 0
    exchange.receive(0, Contribution(numbers(*[2.0] * SIZE), 6))
    exchange.advance(overdue=False)
    assert link.down == [(1, Total(numbers(*[2.0] * SIZE), 1))]
    exchange.begin_phase(7)
    assert link.down[1:] == [(0, PhaseStart(7)), (1, PhaseStart(7))]
    assert exchange.status().phase == 7


def test_the_global_server_refuses_what_cannot_be() -> None:
    exchange = ExactGlobal([0], SIZE, Sent())
    for server, message in (
        (0, Contribution(numbers(1.0), 1)),
        (0, Contribution(numbers(*[1.0] * SIZE), -1)),
        (1, Contribution(numbers(*[1.0] * SIZE), 1)),
        (0, PhaseStart(1)),
    ):
        with pytest.raises(InvalidMessage):
            exchange.receive(server, message)
    assert exchange.status().reported == 0


def test_its_family_claims_nothing() -> None:
    found: Family = family()
    assert (found.privacy, found.ledger(seeded=True), found.price()) == (None, None, None)
    assert found.fingerprint()["contribution"] == SIZE
    message = Contribution(sums_of(1), 1)
    assert found.decode(encode(message)) == message
    assert Job("sums", 0).take() == slice(0, 0)
