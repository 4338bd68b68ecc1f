"""What is wrong is seen where it matters, with what to do, and does not fill the log."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from fclub.errors import Quarantined
from fclub.service.dashboard.words import (
    global_notes,
    global_troubles,
    local_notes,
    local_troubles,
)
from fclub.service.link.broker import LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import Broker, NatsWire
from fclub.service.monitoring import ClockWatch, Monitor
from fclub.service.nodes.global_node import QUARANTINE_AFTER, UNHEARD_SECONDS, Membership
from fclub.service.nodes.handshake import AGREED, REFUSED
from fclub.service.settings import Model
from fclub.service.store.store import Disk, Store

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
    shown = victim.sessions.handshake.shown
    assert shown.state == REFUSED
    assert "quarantine" in str(shown.reason)
    assert "quarantine" in local_notes(victim, {})[0]["text"]
    assert any("quarantine" in note["text"] for note in global_notes(pump.hub))
    pump.hub.members.release("s0")
    pump.run()
    assert victim.sessions.handshake.shown.state == AGREED
    assert pump.hub.members.troubles() == {}
    pump.close()


def test_a_server_that_is_not_heard_is_missed(pump: Pump) -> None:
    peer = pump.hub.peers["s0"]
    long_ago = time.monotonic() - 2 * UNHEARD_SECONDS
    peer.since = long_ago
    assert pump.hub.members.troubles() == {}, "nothing waits for it: it may have nothing to say"
    peer.seen = False
    assert pump.hub.members.troubles()["s0"].startswith("not heard for 1")
    assert [note["good"] for note in global_notes(pump.hub)] == [False]
    peer.since = time.monotonic()
    assert "since the start from s0" in global_notes(pump.hub)[0]["text"]
    peer.seen, peer.since = True, long_ago
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


def test_a_disk_that_gets_full_is_told_before_it_is(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Disk("/", 2 * 10**9, 10**12).nearly_full is None
    assert Disk("/", 20, 100).nearly_full is None
    full = Disk("/srv", 2_000_000, 100_000_000)
    monkeypatch.setattr(Store, "disk", full)
    told = "the disk at /srv is nearly full"
    for troubles in (local_troubles(pump.locals["s0"]), global_troubles(pump.hub)):
        assert told in troubles[0]
    for notes in (local_notes(pump.locals["s0"], {}), global_notes(pump.hub)):
        assert any("The disk at /srv" in note["text"] and not note["good"] for note in notes)
    pump.close()


def test_a_budget_that_ends_before_its_plan_is_told(tmp_path: Path) -> None:
    pump = Pump(tmp_path, Model(policy="cdp-fclub-plus", dim=DIM), 1)
    node = pump.locals["s0"]
    assert local_troubles(node) == []
    assert node.books.ledger is not None
    node.books.ledger.exhausted = True
    assert "before the plan ended" in local_troubles(node)[0]
    pump.close()


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    store = Store(tmp_path / "gone" / "a.db", "global")
    shutil.rmtree(tmp_path / "gone")
    assert store.describe(sqlite3.OperationalError("no file"))["disk"] == str(tmp_path / "gone")
    assert "cannot be read" in str(store.disk.nearly_full)
    store.close()


def test_a_suspended_machine_has_no_clock_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = {time.CLOCK_MONOTONIC: 10.0, time.CLOCK_BOOTTIME: 10.0}
    monkeypatch.setattr(time, "clock_gettime", passed.__getitem__)
    now = 1000.0
    watch = ClockWatch(lambda: now)
    passed[time.CLOCK_BOOTTIME] += 3600.0
    now += 3600.0
    assert watch.jump() == 0.0
    now += 3600.0
    assert watch.jump() == 3600.0


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
    assert 0 < facts["free_bytes"] < facts["size_bytes"]
    assert Path(facts["disk"]).is_mount()
    assert store.describe(ValueError("data of a user")) == {}
    store.close()
