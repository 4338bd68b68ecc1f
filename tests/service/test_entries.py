"""Entries of the log: what is read is what was written, and its bytes stay what they are."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fclub.errors import InvalidFile
from fclub.protocol.interfaces.exchange import Moment
from fclub.service.link.channel import GLOBAL, Offer
from fclub.service.nodes import global_node, local_node
from fclub.service.nodes.node import Entry
from fclub.service.nodes.parts import global_node as open_global
from fclub.service.nodes.parts import local_node as open_node
from fclub.service.settings import GlobalSettings, Model
from fclub.service.store.store import Changes

from .conftest import DIM, local_settings

OFFER = Offer(2, b"session", b"incarnation", False, True, False, 7)
X = np.array([0.5, -0.25, 0.125])
LOCAL: list[tuple[Entry, str, bytes]] = [
    (local_node.NewUser(), "", b""),
    (local_node.Observe(3, 0.5, X), "", struct.pack("<qd", 3, 0.5) + X.tobytes()),
    (local_node.Withhold(3, 1.0, X, "assumed"), "assumed", struct.pack("<qd", 3, 1.0) + X.tobytes()),
    (local_node.Replace(3, 0.0, 1.0, X), "", struct.pack("<qdd", 3, 0.0, 1.0) + X.tobytes()),
    (local_node.Part(), "", b""),
    (local_node.Forget(4), "", b"4"),
    (local_node.FromGlobal(b"payload"), GLOBAL, b"payload"),
    (local_node.Pause(), "", b""),
    (local_node.Agree(), GLOBAL, b""),
    (local_node.Begin(OFFER), GLOBAL, msgspec.msgpack.encode(OFFER)),
    (local_node.Tick(Moment(5.0, 2.0)), "", struct.pack("<dd", 5.0, 2.0)),
    (local_node.Sent(3), "", b"3"),
]
HUB: list[tuple[Entry, str, bytes]] = [
    (global_node.FromLocal(("s1", b"payload")), "s1", b"payload"),
    (
        global_node.Together([("s0", b"a"), ("s1", b"b")]),
        "",
        msgspec.msgpack.encode([("s0", b"a"), ("s1", b"b")]),
    ),
    (global_node.Begin("s1", OFFER), "s1", msgspec.msgpack.encode(OFFER)),
    (global_node.Close(), "", b""),
    (global_node.Retire("s1"), "s1", b""),
    (global_node.Tick(5.0), "", struct.pack("<d", 5.0)),
    (global_node.Sum(2, 4, 90, b"sums"), "", msgspec.msgpack.encode((2, 4, 90, b"sums"))),
    (global_node.Invite(3), "", json.dumps(3).encode()),
]


@pytest.mark.parametrize(
    ("kinds", "entries"), [(local_node.KINDS, LOCAL), (global_node.KINDS, HUB)], ids=["local", "global"]
)
def test_what_is_read_is_what_was_written(
    kinds: Mapping[str, type[Entry]], entries: list[tuple[Entry, str, bytes]]
) -> None:
    assert {entry.kind for entry, _, _ in entries} == kinds.keys()
    for entry, source, body in entries:
        assert (entry.source, entry.body()) == (source, body)
        again = kinds[entry.kind].read(source, body)
        assert type(again) is type(entry)
        assert (again.source, again.body()) == (source, body)


def test_a_time_that_calls_for_nothing_is_not_in_a_log(tmp_path: Path) -> None:
    node = open_node(local_settings(tmp_path, model=Model(policy="cdp-fclub-plus", dim=DIM)))
    with pytest.raises(InvalidFile, match="a time that calls for nothing"):
        local_node.Tick(Moment(5.0, 2.0)).apply(node)
    node.store.close()
    settings = GlobalSettings(
        model=Model(policy="cdp-fclub-plus", dim=DIM), store=str(tmp_path / "global.db"), servers=["s"]
    )
    hub = open_global(settings)
    with pytest.raises(InvalidFile, match="a time that calls for nothing"):
        global_node.Tick(5.0).apply(hub)
    hub.store.close()


def test_entries_about_secure_sums_need_a_server_that_has_them(tmp_path: Path) -> None:
    model = Model(policy="fclub-dc", dim=DIM)
    node = open_node(local_settings(tmp_path, model=model))
    hub = open_global(GlobalSettings(model=model, store=str(tmp_path / "global.db"), servers=["s"]))
    with pytest.raises(InvalidFile, match="secure sums"):
        local_node.Sent(1).apply(node)
    with pytest.raises(InvalidFile, match="secure sums"):
        global_node.Sum(1, 3, 90, b"").apply(hub)
    node.store.close()
    hub.store.close()


def test_an_entry_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    settings = local_settings(tmp_path, model=Model(policy="fclub-dc", dim=DIM))
    node = open_node(settings)
    node.commit()
    changes = Changes()
    changes.log(node.journal.entry + 1, 0, "dance", "", b"", b"")
    node.store.write(changes.statements)
    node.store.close()
    with pytest.raises(InvalidFile, match="a log entry of kind 'dance'"):
        open_node(settings)
