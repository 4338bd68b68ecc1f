"""What one commit of a server sends arrives together: one message, one transaction, one look at it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parts import edges

from fclub.errors import FclubError, InvalidFile, InvalidMessage, OtherVersion
from fclub.service.link.channel import (
    BUNDLE_BYTES,
    BUNDLE_FRAMES,
    GLOBAL,
    VERSION,
    Bundle,
    bundled,
    decode_frame,
    unbundled,
)
from fclub.service.link.wire import DirectWire
from fclub.service.monitoring import Monitor
from fclub.service.nodes.handshake import AGREED
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import Model

from .federation import Pump, totals

DIM, UPLOADS = 3, 5


@given(st.lists(st.binary(max_size=40), max_size=600))
def test_frames_come_out_of_bundles_as_they_went_in(frames: list[bytes]) -> None:
    messages = list(bundled("s0", frames))
    assert [frame for message in messages for frame in unbundled(message, "s0")] == frames
    assert len(messages) == -(-len(frames) // BUNDLE_FRAMES)


def test_one_frame_travels_as_it_is_and_large_ones_apart() -> None:
    half = bytes(BUNDLE_BYTES // 2)
    assert list(bundled("s0", [])) == []
    assert list(bundled("s0", [b"frame"])) == [b"frame"]
    sizes = [len(unbundled(message, "s0")) for message in bundled("s0", [half, half, b"", b"1", half])]
    assert sizes == [3, 2]
    assert list(bundled("s0", [4 * half, half])) == [4 * half, half]


def bundle(
    version: int = VERSION, sender: str = "s0", frames: tuple[bytes, ...] = (b"a", b"b")
) -> bytes:
    return msgspec.msgpack.encode(Bundle(version, sender, frames))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"no frame", InvalidMessage),
        (bundle(sender="s1"), InvalidMessage),
        (bundle(version=VERSION + 1), OtherVersion),
        (bundle(frames=(b"",) * (BUNDLE_FRAMES + 1)), InvalidMessage),
        (bundle(frames=(bundle(),)), InvalidMessage),
    ],
    ids=["noise", "foreign", "version", "too many", "nested"],
)
def test_what_is_no_sound_bundle_is_refused_as_a_frame(data: bytes, error: type[FclubError]) -> None:
    frame, *_ = unbundled(data, "s0")
    with pytest.raises(error):
        decode_frame(frame, "s0")


def busy(node: LocalNode, visits: int) -> None:
    """People come, and each observation is an upload."""
    items = np.eye(DIM)
    for _ in range(visits):
        node.rewards.feedback(node.recommend("ann", items, ["a", "b", "c"]).id, 1.0)


def federation(path: Path, servers: int = 1) -> Pump:
    """No phase begins before 14 visits; there have been 7, or 6 of two servers."""
    pump = Pump(path, Model(policy="fclub", dim=DIM), servers)
    for node in pump.locals.values():
        for _ in range(7 // servers):
            busy(node, 1)
            pump.run()
    return pump


class Counting(DirectWire):
    """Keeps what is sent with a message id: numbered frames, alone or in bundles."""

    def __init__(self, name: str, board: dict[str, DirectWire]) -> None:
        super().__init__(name, board)
        self.messages: list[bytes] = []

    async def send(self, peer: str, frame: bytes, message_id: str | None) -> None:
        if message_id is not None:
            self.messages.append(frame)
        await super().send(peer, frame, message_id)


async def group_commit(pump: Pump, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bytes], int]:
    """What the local server sends for one group commit, and how often the global server commits."""
    board: dict[str, DirectWire] = {}
    node, commits = pump.locals["s0"], 0
    wire = Counting("s0", board)
    hub = Runner(pump.hub, DirectWire(GLOBAL, board), Monitor("global"))
    local = Runner(node, wire, Monitor("local"))
    for runner in (hub, local):
        await runner.start()
    while (
        node.sessions.handshake.standing.state != AGREED
        or node.sessions.channel.sent > node.sessions.channel.confirmed
    ):
        await asyncio.sleep(0.001)
    wire.messages.clear()
    commit = pump.hub.store.commit

    def counted() -> None:
        nonlocal commits
        commits += 1
        commit()

    with monkeypatch.context() as patch:
        patch.setattr(pump.hub.store, "commit", counted)
        busy(node, UPLOADS)
        await local.commit()
        while node.sessions.channel.sent > node.sessions.channel.confirmed:
            await asyncio.sleep(0.001)
    for runner in (local, hub):
        await runner.stop()
    return wire.messages, commits


def kinds(pump: Pump) -> list[str]:
    """What the log of the global server says it did."""
    return [kind for _, kind, _, _, _ in pump.hub.store.entries(0)]


def test_uploads_of_a_group_commit_are_one_message_and_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = federation(tmp_path)
    messages, commits = asyncio.run(group_commit(pump, monkeypatch))
    assert [len(unbundled(message, "s0")) for message in messages] == [UPLOADS]
    assert commits == 1


def test_messages_that_arrive_together_are_one_entry_of_the_log(tmp_path: Path) -> None:
    pump = federation(tmp_path)
    before = len(kinds(pump))
    busy(pump.locals["s0"], UPLOADS)
    pump.run()
    assert kinds(pump)[before:] == ["messages"]
    busy(pump.locals["s0"], 1)
    pump.run()
    assert kinds(pump)[before:] == ["messages", "message"]
    assert totals(pump) == (13, 13, 0)
    pump.close()


def test_uploads_that_arrive_together_are_one_download(tmp_path: Path) -> None:
    """With D = 1 every upload calls for a download; together they call for one with all of them."""
    pump = federation(tmp_path, servers=2)
    first, second = pump.locals["s0"], pump.locals["s1"]
    sent = pump.hub.communications.downloads
    busy(first, UPLOADS)
    pump.run()
    assert pump.hub.communications.downloads == sent + 1
    assert edges(second.server).clusters.counts.sum() == pump.hub.server.reported == 6 + UPLOADS
    pump.close()


def test_what_was_not_committed_has_no_receipt_and_comes_again(tmp_path: Path) -> None:
    """The global server dies after it has applied a group and before it is on disk."""
    pump = federation(tmp_path)
    node = pump.locals["s0"]
    received = pump.hub.peers["s0"].channel.received
    busy(node, UPLOADS)
    for _, frame in pump.commit(node):
        pump.hub.receive("s0", frame)
    assert pump.hub.peers["s0"].channel.received == received + UPLOADS
    pump.hub.store.close()
    pump.hub = pump.open_hub()
    assert pump.hub.peers["s0"].channel.received == received
    pump.run()
    assert node.sessions.channel.confirmed == node.sessions.channel.sent
    assert totals(pump) == (12, 12, 0)
    pump.close()


def state(pump: Pump) -> Any:
    arrays, values = pump.hub.server.state()
    return {name: array.tobytes() for name, array in arrays.items()}, values


@pytest.mark.parametrize("snapshot", [False, True])
def test_reports_that_arrive_together_are_merged_once(tmp_path: Path, snapshot: bool) -> None:
    """And a restart leads to the same state, also where a snapshot falls right behind them."""
    pump = Pump(tmp_path, Model(policy="fclub-plus", dim=DIM), 2)
    phase = pump.hub.server.phase
    for node in pump.locals.values():
        said = node.sessions.channel.sent
        while node.sessions.channel.sent == said:
            busy(node, 1)
            while (part := node.part()) is not None:
                part()
    for node in pump.locals.values():
        for _, frame in pump.commit(node):
            pump.hub.receive(node.name, frame)
    if snapshot:
        pump.hub.journal.snapshot()
    pump.run()
    assert pump.hub.server.phase == phase + 1
    expected = state(pump)
    pump.restart(snapshot=False)
    assert state(pump) == expected
    pump.close()


def test_an_entry_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    pump = Pump(tmp_path, Model(policy="fclub", dim=DIM), 1)
    pump.hub.store.write([("INSERT INTO log VALUES (?, 'other', '', x'', x'')", (10**6,))])
    pump.close()
    with pytest.raises(InvalidFile, match="entry of kind 'other'"):
        pump.open_hub()
