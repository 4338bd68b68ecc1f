"""Stores of earlier versions open and go on; their servers begin the first session."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fclub.errors import InvalidFile
from fclub.service.nodes.handshake import AGREED
from fclub.service.settings import Model
from fclub.service.store.store import VERSION, Store

from .federation import Pump, totals

STORES = Path(__file__).parent / "stores"
SOON: dict[str, dict[str, Any]] = {
    "fclub-dc": {},
    "cdp-fclub-plus": {"unit": "event", "first_release": 4, "release_ratio": 2.0},
}


def fill(path: Path, dump: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()


@pytest.mark.parametrize("dump", sorted(STORES.glob("*.sql")), ids=lambda path: path.stem)
def test_every_store_that_was_ever_kept_is_brought_to_the_present_form(
    tmp_path: Path, dump: Path
) -> None:
    """The same tables, columns and indexes as a new store has."""
    kind = "global" if "-global-" in dump.stem else "local"
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    fill(old, dump)
    forms = []
    for path in (old, new):
        Store(path, kind).close()
        connection = sqlite3.connect(path)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
        forms.append(
            {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}
        )
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        connection.close()
    assert {name: sorted(c[1] for c in columns) for name, columns in forms[0].items()} == {
        name: sorted(c[1] for c in columns) for name, columns in forms[1].items()
    }


@pytest.mark.parametrize("policy", SOON)
def test_a_federation_goes_on_from_stores_without_sessions(tmp_path: Path, policy: str) -> None:
    """32 observations of s0, of which 17 messages were not confirmed when the servers were stopped."""
    for name in ("s0", "global"):
        fill(tmp_path / f"{name}.db", STORES / f"{policy}-{name}-v3.sql")
    model = Model(policy=policy, dim=2, expected_clusters=10, parameters=SOON[policy])
    try:
        pump = Pump(tmp_path, model, 2)
    except InvalidFile:
        if policy == "fclub-dc":
            raise
        pytest.skip("our own policies may change so that an earlier store is refused")
    node = pump.locals["s0"]
    assert node.server.counts.sum() == 32
    assert node.handshake.standing.state == AGREED
    assert node.channel.ordinal == 1
    assert node.era == 0, "nothing is withheld because of a new version"
    pump.hub.close_phase()
    pump.run()
    own, reported, _ = totals(pump)
    assert own == 32
    assert pump.hub.server.released_by(0) <= 32, "nothing counts twice"
    assert reported > 0
    pump.restart(snapshot=True)
    assert totals(pump)[:2] == (own, reported)
    pump.close()
