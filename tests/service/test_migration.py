"""Stores of earlier versions open and go on; their servers begin the first session."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fclub.errors import OtherSettings
from fclub.service.nodes.handshake import AGREED
from fclub.service.nodes.parts import local_node
from fclub.service.settings import LocalSettings, Model
from fclub.service.store.store import VERSION, Store

from .federation import Pump, totals

STORES = Path(__file__).parent / "stores"
SOON: dict[str, dict[str, Any]] = {
    "fclub-dc": {},
    "cdp-fclub-plus": {"unit": "event", "first_release": 4, "release_ratio": 2.0},
}
KEPT: dict[str, dict[str, Any]] = {
    "cdp-fclub-plus": SOON["cdp-fclub-plus"],
    "cdp-fclub-plus-user": {"few": 2, "types": 2, "slots": 24},
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


def test_a_store_from_before_whole_numbers_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Its sums and noise are doubles: no release of this version may be added to them."""
    policy = "cdp-fclub-plus"
    for name in ("s0", "global"):
        fill(tmp_path / f"{name}.db", STORES / f"{policy}-{name}-v3.sql")
    model = Model(policy=policy, dim=2, expected_clusters=10, parameters=SOON[policy])
    with pytest.raises(OtherSettings, match="begin with a new store, which spends a budget of its own"):
        Pump(tmp_path, model, 2)
    settings = LocalSettings(model=model, name="s0", store=str(tmp_path / "s0.db"))
    with pytest.raises(OtherSettings, match="other rules for cdp-fclub-plus"):
        local_node(settings, create=False)


@pytest.mark.parametrize("kept", KEPT)
def test_a_private_federation_goes_on_from_its_stores(tmp_path: Path, kept: str) -> None:
    """32 observations of s0; ledger, noise and session are what they were, and it releases more."""
    for name in ("s0", "global"):
        fill(tmp_path / f"{name}.db", STORES / f"{kept}-{name}-v8.sql")
    model = Model(policy="cdp-fclub-plus", dim=2, expected_clusters=10, parameters=KEPT[kept])
    pump = Pump(tmp_path, model, 2)
    node = pump.locals["s0"]
    assert node.server.counts.sum() == 32
    assert (node.handshake.standing.state, node.channel.ordinal, node.era) == (AGREED, 1, 0)
    assert node.books.ledger is not None
    assert node.books.ledger.mu > 0.0
    sent, x = node.channel.sent, np.array([[0.6, 0.8]])
    for visit in range(40):
        shown = node.recommend(f"u{visit % 4}", x, ["item"])
        node.feedback(shown.id, 1.0)
        pump.run()
    assert node.channel.sent > sent
    assert node.books.unaccounted() == 0
    pump.close()


@pytest.mark.parametrize("policy", ["fclub-dc"])
def test_a_federation_goes_on_from_stores_without_sessions(tmp_path: Path, policy: str) -> None:
    """32 observations of s0, of which 17 messages were not confirmed when the servers were stopped."""
    for name in ("s0", "global"):
        fill(tmp_path / f"{name}.db", STORES / f"{policy}-{name}-v3.sql")
    model = Model(policy=policy, dim=2, expected_clusters=10, parameters=SOON[policy])
    pump = Pump(tmp_path, model, 2)
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
