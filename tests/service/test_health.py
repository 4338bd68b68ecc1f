"""What is wrong is seen where it matters, with what to do, and does not fill the log."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from pathlib import Path

import pytest

from fclub.errors import Quarantined
from fclub.service.dashboard.words import global_notes, local_notes
from fclub.service.link.broker import LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import Broker, NatsWire
from fclub.service.monitoring import Monitor
from fclub.service.nodes.global_node import QUARANTINE_AFTER, UNHEARD_SECONDS, Membership
from fclub.service.nodes.handshake import AGREED
from fclub.service.settings import Model
from fclub.service.store.store import Store

from .conftest import wait_for
from .federation import Pump, refuse

DIM = 4


@pytest.fixture
def pump(tmp_path: Path) -> Pump:
    return Pump(tmp_path, Model(dim=DIM, policy="fclub-plus"), 2)


def test_both_ends_know_of_a_quarantine_and_of_its_end(pump: Pump) -> None:
    victim = pump.locals["s0"]
    for _ in range(QUARANTINE_AFTER):
        refuse(pump, "s0", b"nonsense")
    assert "POST /v1/servers/s0/release" in pump.hub.members.troubles()["s0"]
    assert "s1" not in pump.hub.members.troubles()
    victim.sessions.connected()
    (_, hello), *_ = pump.commit(victim)
    for _ in range(2):
        assert isinstance(refuse(pump, "s0", hello), Quarantined)
    told = [frame for peer, frame in pump.commit(pump.hub) if peer == "s0"]
    assert len(told) == 1, "not once for every frame"
    victim.receive(GLOBAL, told[0])
    health = victim.sessions.handshake.shown.health
    assert health["status"] == "degraded"
    assert "quarantine" in health["reason"]
    assert "quarantine" in local_notes(victim, {})[0]["text"]
    assert any("quarantine" in note["text"] for note in global_notes(pump.hub))
    pump.hub.members.release("s0")
    pump.run()
    assert victim.sessions.handshake.shown.state == AGREED
    assert pump.hub.members.troubles() == {}
    pump.close()


def test_a_server_that_is_not_heard_is_missed(pump: Pump) -> None:
    peer = pump.hub.peers["s0"]
    pump.hub.members.started = time.time() - 2 * UNHEARD_SECONDS
    assert pump.hub.members.troubles() == {}
    peer.seen = None
    assert pump.hub.members.troubles()["s0"].startswith("not heard for 1")
    assert [note["good"] for note in global_notes(pump.hub)] == [False]
    pump.hub.members.started = time.time()
    assert "since the start from s0" in global_notes(pump.hub)[0]["text"]
    peer.seen = time.time() - 2 * UNHEARD_SECONDS
    assert pump.hub.members.troubles() == {}, "nothing waits for it: it may have nothing to say"
    peer.channel.send(b"", pump.hub.journal.changes)
    assert pump.hub.members.troubles()["s0"].startswith("not heard for 1")
    pump.hub.members.follow(Membership(["s1", "s0"], suspended=["s0"]))
    assert pump.hub.members.troubles()["s0"].startswith("suspended")
    pump.hub.members.follow(Membership(["s1"], retired=["s0"]))
    assert pump.hub.members.troubles() == {}
    assert [note["good"] for note in global_notes(pump.hub)] == [True, True]
    pump.close()


def test_ten_minutes_with_a_wrong_password_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """As many failures as an operator has counted, of the kinds that nats-py raises."""
    now = 0.0
    monitor = Monitor("local", clock=lambda: now)
    errors = [
        OSError("nats: 'Authorization Violation'"),
        EOFError("nats: unexpected EOF"),
        TimeoutError("nats: no servers available for connection"),
    ]
    with caplog.at_level(logging.INFO, "fclub.service"):
        for number in range(2948):
            now = number * 600.0 / 2948
            monitor.wire_failed(errors[number % len(errors)])
        told = len(caplog.records)
        monitor.wire_works()
        monitor.wire_works()
    assert 3 <= told <= 20
    assert len(caplog.records) == told + 1, "that it works again is told once"
    assert monitor.failures._value.get() == 2948
    for number in range(200):
        monitor.wire_failed(OSError(f"another one, {number}"))
    assert len(monitor.recent) < 100, "nor do errors without number"


def test_a_wrong_password_is_told_with_what_to_do(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path / "nats", {"north": "right", GLOBAL: "x"})
    broker.start()
    monitor = Monitor("local")

    async def dial() -> None:
        async def ignore(arrivals: list[tuple[str, bytes]]) -> None:
            """Nothing arrives."""

        wire = NatsWire("north", Broker(broker.url, "north", "wrong"), monitor)
        await wire.start(ignore, lambda: None)
        await asyncio.to_thread(wait_for, lambda: "ask the operator" in monitor.unreached)
        assert not wire.connected
        await wire.stop()

    try:
        asyncio.run(dial())
    finally:
        broker.stop()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db", "global")
    database = sqlite3.connect(tmp_path / "small.db")
    database.execute("PRAGMA max_page_count = 2")
    database.execute("CREATE TABLE t (x)")
    with pytest.raises(sqlite3.OperationalError) as caught:
        database.execute("INSERT INTO t VALUES (zeroblob(100000))")
    database.close()
    facts = store.describe(caught.value)
    assert facts["reason"] == "SQLITE_FULL"
    assert facts["store"] == str(tmp_path / "a.db")
    assert facts["free_bytes"] > 0
    assert store.describe(ValueError("data of a user")) == {}
    store.close()
