"""What servers do when a session begins anew: nothing counts twice, and nothing is released twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fclub.core.types import Vector
from fclub.errors import InvalidMessage
from fclub.privacy.noise import NoNoise, SeededNoise
from fclub.protocol.exchanges.rounds import TypeNews, read_told
from fclub.protocol.exchanges.streams import Others
from fclub.protocol.exchanges.user_streams import FROZEN, Digest, Shares
from fclub.protocol.families import FAMILIES, make_family
from fclub.protocol.interfaces.exchange import Beginning
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, write_id
from fclub.protocol.servers import GlobalServer, LocalServer

DIM, HALF = 3, float(np.sqrt(0.5))
SOON = {"first_release": 4, "release_ratio": 1.5}
SETTINGS: dict[str, dict[str, Any]] = {
    "cdp-fclub-plus": SOON | {"unit": "event"},
    "cdp-homo": SOON,
    "cdp-fclub-dc": {"epsilon": 100.0, "delta": 0.1},
}
NEW, OLD, LOST = Beginning(local_new=True), Beginning(local_old=True), Beginning(global_lost=True)
STREAMS = ["cdp-fclub-plus", "cdp-homo"]

COUNTED = list(FAMILIES)
"""As above their servers release by their own numbers; those with a plan do so by the clock."""


class Wire(InProcessLink):
    """Says nothing to servers that have not begun a session, as a live one; notes what it says."""

    def __init__(self, decode: Callable[[bytes], Message]) -> None:
        super().__init__(decode)
        self.deaf: set[int] = set()
        self.held: dict[int, list[Message]] = {}
        self.down: dict[int, Message] = {}

    def to_local(self, server: int, message: Message) -> None:
        if server in self.held:
            self.held[server].append(message)
        elif server not in self.deaf:
            self.down[server] = message
            super().to_local(server, message)

    def deliver(self, server: int) -> None:
        """What was held back until both sides agree."""
        for message in self.held.pop(server):
            self.to_local(server, message)

    def others(self, server: int) -> bool:
        """Whether the last answer brought data of others, or of earlier stores."""
        last = self.down.get(server)
        if isinstance(last, TypeNews):
            return bool(read_told(last.sums, len(last.ids), DIM).sums.users.sum())
        return isinstance(last, Others) or (isinstance(last, Shares) and bool(last.present))


class Pair:
    """Two live servers and a hub, through the seam only."""

    def __init__(self, name: str, **parameters: Any) -> None:
        self.family = make_family(name, Shape(DIM, 8, HALF), SETTINGS.get(name, {}) | parameters)
        self.link = Wire(self.family.decode)
        self.rng = np.random.default_rng(1)
        self.ledgers = [self.family.ledger(seeded=True) for _ in range(2)]
        self.locals = [self.local(number) for number in range(2)]
        self.hub: GlobalServer = self.family.global_server([], self.link)
        self.connect()
        self.hub.invite(2)

    def local(self, number: int) -> LocalServer:
        source = SeededNoise(np.random.default_rng(number)) if self.family.privacy else NoNoise()
        rng, ledger = np.random.default_rng(number), self.family.ledger(seeded=True)
        self.ledgers[number] = ledger
        place = Place(str(number), self.link.uplink(number), source, ledger, rng)
        server: LocalServer = self.family.local_server(place, self.family.users(0), live=True)
        return server

    def connect(self) -> None:
        self.link.connect(self.hub, dict(enumerate(self.locals)))

    def item(self) -> Vector:
        return np.append(self.rng.uniform(-0.4, 0.4, DIM - 1), HALF)

    def visit(self, rounds: int, servers: tuple[int, ...] = (0, 1), users: int = 3) -> None:
        for _ in range(rounds):
            for number in servers:
                server, row = self.locals[number], int(self.rng.integers(users))
                while row >= len(server.counts):
                    server.add_user()
                server.observe(row, self.item(), float(self.rng.random() < 0.5))
                work = server.due()
                if work is not None:
                    work()
                self.hub.advance()

    def begin(self, number: int, beginning: Beginning) -> None:
        used = max(self.locals[number].status().used, self.hub.used_by(number), beginning.used)
        beginning = beginning._replace(used=used)
        self.locals[number].pause()
        self.link.deaf.discard(number)
        self.link.held[number] = []
        self.hub.begin(number, beginning)
        self.locals[number].begin(beginning)
        self.hub.advance()
        self.locals[number].go_on()
        self.link.deliver(number)
        self.hub.advance()

    def own(self) -> int:
        return sum(int(server.counts.sum()) for server in self.locals)

    def reload(self) -> None:
        """All servers continue from what they save."""
        for number, server in enumerate(self.locals):
            arrays, values = server.state()
            self.locals[number] = self.local(number)
            self.locals[number].restore(arrays, json.loads(json.dumps(values)))
        arrays, values = self.hub.state()
        self.hub = self.family.global_server(list(range(2)), self.link)
        self.hub.restore(arrays, json.loads(json.dumps(values)))
        self.connect()


@pytest.mark.parametrize("beginning", [NEW, OLD, LOST, Beginning()])
@pytest.mark.parametrize("name", COUNTED)
def test_nothing_counts_twice_when_a_session_begins(name: str, beginning: Beginning) -> None:
    pair = Pair(name)
    pair.visit(60)
    lost = int(pair.locals[0].counts.sum()) if beginning.local_new else 0
    if beginning.local_new:
        pair.locals[0] = pair.local(0)
        pair.connect()
    if beginning.global_lost:
        pair.link.deaf = {0, 1}
        pair.hub = pair.family.global_server([], pair.link)
        pair.connect()
        pair.hub.invite(2)
        pair.begin(1, beginning)
    pair.begin(0, beginning)
    assert pair.hub.reported <= pair.own() + lost
    pair.visit(60)
    assert pair.hub.reported <= pair.own() + lost
    assert pair.hub.reported or all(ledger and ledger.exhausted for ledger in pair.ledgers)
    assert pair.hub.reported == sum(pair.hub.released_by(number) for number in range(2))
    before = pair.hub.reported
    arrays, values = pair.hub.state()
    pair.reload()
    assert pair.hub.reported == before
    again, told = pair.hub.state()
    assert json.dumps(told) == json.dumps(values)
    for key, array in arrays.items():
        np.testing.assert_array_equal(again[key], array)


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus", "cdp-homo"])
def test_what_a_lost_disk_had_released_stays_and_helps_its_successor(name: str) -> None:
    pair = Pair(name)
    pair.visit(60, servers=(0,))
    kept = pair.hub.released_by(0)
    assert kept > 0
    pair.locals[0] = pair.local(0)
    pair.connect()
    pair.begin(0, NEW)
    assert pair.hub.released_by(0) == kept
    pair.visit(60, servers=(0,))
    assert pair.hub.released_by(0) > kept
    assert pair.link.others(0), "it learns from its former self"


@pytest.mark.parametrize("name", STREAMS)
def test_an_old_store_releases_only_what_comes_later(name: str) -> None:
    pair = Pair(name)
    pair.visit(60, servers=(0,))
    kept = pair.hub.released_by(0)
    pair.begin(0, OLD)
    server, ledger = pair.locals[0], pair.ledgers[0]
    assert ledger is not None
    assert pair.hub.released_by(0) == kept > 0, "what it had released stays"
    assert server.status().waiting == 0
    mu, streams = ledger.mu, len(ledger.streams)
    pair.visit(40, servers=(0,))
    assert kept < pair.hub.released_by(0) <= kept + 40
    assert len(ledger.streams) > streams, "new streams"
    assert ledger.mu == mu > 0.0, "which are disjoint from the old ones: the maximum, not the sum"
    assert not pair.link.others(0), "its own old data do not come back to it"
    pair.begin(0, NEW)
    pair.begin(0, OLD)
    released = pair.hub.released_by(0)
    pair.reload()
    assert pair.hub.released_by(0) == released


@pytest.mark.parametrize("name", STREAMS)
def test_a_copy_from_before_the_first_release_is_charged(name: str) -> None:
    pair = Pair(name)
    pair.visit(1, servers=(0,))
    pair.begin(0, OLD)
    ledger = pair.ledgers[0]
    assert ledger is not None
    assert ledger.mu > 0.0, "a later copy may have released"
    assert ledger.streams


@pytest.mark.parametrize("name", COUNTED)
def test_what_is_withheld_is_learned(name: str) -> None:
    pair = Pair(name)
    pair.visit(30)
    server = pair.locals[0]
    before, released = int(server.counts.sum()), pair.hub.released_by(0)
    for _ in range(40):
        server.observe(0, pair.item(), 1.0, releasable=False)
        work = server.due()
        if work is not None:
            work()
        pair.hub.advance()
    assert int(server.counts.sum()) == before + 40
    if name in STREAMS:
        assert pair.hub.released_by(0) <= before
        assert server.status().waiting <= before - released
    state = server.state()[0]
    pair.reload()
    for key, array in pair.locals[0].state()[0].items():
        np.testing.assert_array_equal(array, state[key])


@pytest.mark.parametrize("name", COUNTED)
def test_a_paused_server_learns_and_says_nothing(name: str) -> None:
    pair = Pair(name)
    pair.visit(20)
    for server in pair.locals:
        server.pause()
    before = pair.hub.reported, pair.link.communications.messages
    pair.visit(60)
    assert (pair.hub.reported, pair.link.communications.messages) == before
    for server in pair.locals:
        server.go_on()
    pair.visit(60)
    assert pair.hub.reported > before[0]


def test_a_server_of_types_that_is_paused_stays_paused() -> None:
    pair = Pair("fclub-plus")
    pair.visit(40)
    pair.locals[0].pause()
    before = pair.link.communications.messages
    pair.visit(80, servers=(0,), users=8)
    assert pair.link.communications.messages == before
    pair.locals[0].go_on()
    pair.begin(0, LOST)
    pair.visit(80, users=8)
    known = pair.hub.released_by(0)
    assert known > 0
    pair.begin(0, NEW)
    assert pair.hub.released_by(0) > 0
    pair.reload()
    pair.begin(0, OLD)
    assert pair.hub.released_by(0) <= int(pair.locals[0].counts.sum())


def test_clusters_of_an_earlier_session_cannot_be_named() -> None:
    pair = Pair("cdp-fclub-plus")
    pair.visit(30)
    with pytest.raises(InvalidMessage, match="earlier session"):
        pair.hub.receive(0, Digest(1, (write_id(FROZEN),), ()))


def test_answers_to_an_earlier_session_are_not_waited_for() -> None:
    pair = Pair("cdp-fclub-plus")
    pair.visit(40, servers=(0,))
    pair.locals[0].begin(LOST)
    with pytest.raises(InvalidMessage):
        pair.locals[0].receive(Shares(1, 0, (99,), ()))


def test_an_old_store_of_the_printed_algorithm_charges_the_phases_that_it_has_forgotten() -> None:
    pair = Pair("cdp-fclub-dc")
    pair.visit(20)
    fresh = pair.local(0)
    pair.locals[0].begin(Beginning(local_old=True, used=pair.locals[0].status().used + 2))
    ledger = pair.ledgers[0]
    assert ledger is not None
    fresh.begin(Beginning(local_old=True, used=2))
    assert fresh.status().used == 2
    assert {stream.epoch for stream in ledger.streams.values()} == {1, 2}
    fresh.begin(Beginning(local_old=True, used=10_000))
    assert ledger.exhausted, "as many as the budget has room for"


def test_an_exact_server_of_the_printed_algorithm_has_nothing_to_charge() -> None:
    pair = Pair("fclub-dc")
    pair.visit(20)
    pair.begin(0, Beginning(local_old=True, used=50))
    assert pair.locals[0].status().used > 50


def test_a_global_server_that_gathers_looks_at_downloads_once() -> None:
    """Uploads that arrive together are all applied; nobody is told of them one by one."""
    pair = Pair("fclub")
    pair.visit(20)
    pair.hub.gathers = True
    told = pair.hub.released_by(0)
    pair.locals[0].observe(0, pair.item(), 1.0)
    assert pair.hub.released_by(0) == told + 1
    pair.visit(20)
    assert pair.own() == sum(pair.hub.released_by(s) + pair.locals[s].status().waiting for s in (0, 1))


def test_a_report_that_was_asked_for_meanwhile_comes_afterwards() -> None:
    pair = Pair("fclub-dc")
    pair.locals[0].pause()
    pair.locals[0].add_user()
    assert pair.hub.used_by(0) == 0
    pair.locals[0].go_on()
    assert pair.hub.used_by(0) == 1
