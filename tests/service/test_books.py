"""The ledger of a live server: before anything leaves, never over budget, the same after a crash."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from tests.parts import edges, present
from typer.testing import CliRunner

from fclub.cli.privacy import app
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidFile, InvalidMessage, PrivacyError, UnknownName
from fclub.privacy.ledger import ReleaseEvent
from fclub.privacy.plan import make_plan
from fclub.protocol.messages import PhaseStart
from fclub.service.http.local_status import privacy_view
from fclub.service.link.channel import GLOBAL
from fclub.service.nodes.parts import local_node
from fclub.service.serve import local_app
from fclub.service.settings import Model
from fclub.service.store.books import read_books

from .conftest import DIM, METRICS_TOKEN, local_settings, offer, serving
from .federation import Pump, play

PRIVATE = Model(policy="cdp-fclub-dc", dim=3, parameters={"delta": 0.1})
SPENDTHRIFT = Model(
    policy="cdp-fclub-dc", dim=3, parameters={"epsilon": 60.0, "delta": 0.1, "horizon": 20}
)
"""At so large an ε the noise pays for the phases of the horizon and for no more."""


def federation(path: Path, model: Model, rounds: int, servers: int = 2) -> tuple[Pump, Synthetic]:
    environment = Synthetic(users=6, clusters=2, servers=servers, dim=model.dim, items=4)
    environment.start(3)
    pump = Pump(path, model, servers)
    play(pump, environment, rounds)
    return pump, environment


def stored(pump: Pump, name: str) -> list[tuple[int, ReleaseEvent]]:
    rows = pump.locals[name].store.reader.execute("SELECT frame, event FROM ledger ORDER BY entry")
    return [(frame, msgspec.json.decode(event, type=ReleaseEvent)) for frame, event in rows]


def test_every_message_has_its_entries_in_its_own_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes that hold a frame hold the entries of what is in it."""
    pump, environment = federation(tmp_path, PRIVATE, 0)
    node, seen = pump.locals["s0"], 0
    commit = pump.commit

    def watched(one: Any) -> Any:
        nonlocal seen
        if one is node:
            sql = [sql for sql, _ in node.journal.changes.statements]
            frames = sum("INTO outbox" in statement for statement in sql)
            entries = [row for text, row in node.journal.changes.statements if "INTO ledger" in text]
            assert len({frame for _, _, frame, _ in entries}) == frames
            seen += frames
        return commit(one)

    monkeypatch.setattr(pump, "commit", watched)
    play(pump, environment, 80)
    assert seen > 10
    assert node.books.unaccounted() == 0
    releases = [event for _, event in stored(pump, "s0") if event.releases]
    assert sum(event.observations for event in releases if event.sequence) > 0
    pump.close()


def test_only_cdp_is_claimed_and_raw_facts_are_named(tmp_path: Path) -> None:
    pump, _ = federation(tmp_path, PRIVATE, 60)
    view = privacy_view(pump.locals["s0"].books)
    assert (view.level, view.unaccounted) == ("cdp", ["raw-partition", "raw-trigger"])
    assert [budget.delta for budget in view.spent] == [0.1, 1e-5]
    assert 0.0 <= view.spent[0].epsilon < 1.0
    assert view.spent[1].epsilon > 0.0
    assert view.messages["report"] == len({stream.epoch for stream in view.streams})
    with pytest.raises(UnknownName, match="level"):
        Pump(tmp_path, Model(policy="cdp-fclub-dc", dim=3, parameters={"level": "transcript"}), 1)
    pump.close()


def test_a_restart_at_any_moment_gives_the_same_ledger(tmp_path: Path) -> None:
    pump, environment = federation(tmp_path, PRIVATE, 0)
    for step in range(8):
        play(pump, environment, 12)
        if step % 3 == 1:
            pump.locals["s0"].journal.snapshot()
            pump.run()
        before = privacy_view(pump.locals["s0"].books)
        pump.close()
        pump.hub = pump.open_hub()
        pump.locals = {name: pump.open_local(name) for name in pump.names}
        assert privacy_view(pump.locals["s0"].books) == before
        again = read_books(tmp_path / "s0.db")
        assert again.mu == present(pump.locals["s0"].books.ledger).mu
    pump.close()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM ledger WHERE entry = (SELECT max(entry) FROM ledger)",
        "DELETE FROM ledger",
        "UPDATE ledger SET frame = frame + 1",
        "INSERT INTO ledger SELECT entry + 1000, made, frame, event FROM ledger",
        "UPDATE ledger SET event = 'nonsense'",
    ],
)
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_ledger_that_was_tampered_with_is_noticed(tmp_path: Path, sql: str, snapshot: bool) -> None:
    pump, environment = federation(tmp_path, PRIVATE, 30)
    if snapshot:
        pump.locals["s0"].journal.snapshot()
        pump.run()
        play(pump, environment, 30)
    pump.close()
    with sqlite3.connect(tmp_path / "s0.db") as connection:
        connection.execute(sql)
    connection.close()
    with pytest.raises((InvalidFile, PrivacyError)):
        pump.open_local("s0")


def test_over_budget_it_recommends_and_learns_but_reports_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump, environment = federation(tmp_path, SPENDTHRIFT, 0, servers=1)
    node, notices = pump.locals["s0"], []
    take = node.take

    def noted() -> Any:
        changes = take()
        notices.extend(changes.notices)
        return changes

    monkeypatch.setattr(node, "take", noted)
    for _ in range(30):
        play(pump, environment, 20)
        pump.hub.close_phase()
        pump.run()
    view = privacy_view(node.books)
    assert view.exhausted
    assert view.spent[0].epsilon <= 60.0
    assert len(notices) == 1
    assert "budget" in notices[0]
    reports = view.messages["report"]
    assert reports < pump.hub.server.phase
    assert int(edges(node.server).users.counts.sum()) == 600, "it goes on learning"
    own = int(edges(node.server).users.counts.sum())
    waiting = int(edges(node.server).clusters.buffer_count.sum())
    assert own == pump.hub.server.reported + waiting
    pump.close()
    again = pump.open_local("s0")
    assert again.books.exhausted
    assert privacy_view(again.books) == view
    again.store.close()


def test_a_global_server_cannot_have_the_same_phase_twice(tmp_path: Path) -> None:
    """It would average the noise away."""
    pump, _ = federation(tmp_path, PRIVATE, 30)
    node = pump.locals["s0"]
    entries = len(stored(pump, "s0"))
    pump.hub.to_local(0, PhaseStart(pump.hub.server.phase))
    with pytest.raises(InvalidMessage, match="was answered"):
        pump.run()
    assert node.books.entries == entries
    pump.close()


def visit(client: httpx.Client, rounds: int) -> None:
    rng = np.random.default_rng(0)
    for k in range(rounds):
        body = {"user": f"u{k % 3}", "items": offer(rng)}
        decision = client.post("/v1/recommend", json=body).json()["decision"]
        assert client.post("/v1/feedback", json={"decision": decision, "reward": 1.0}).is_success


def test_health_metrics_and_privacy_say_that_the_budget_is_used_up(tmp_path: Path) -> None:
    model = msgspec.structs.replace(SPENDTHRIFT, dim=DIM)
    application, runner = local_app(local_settings(tmp_path, model=model))
    with serving(application) as client:
        while not client.get("/healthz").json()["privacy_exhausted"]:
            visit(client, 10)
        others = {"Authorization": f"Bearer {METRICS_TOKEN}"}
        assert client.get("/v1/privacy", headers=others).status_code == 403, "streams may be users"
        view = client.get("/v1/privacy").json()
        metrics = client.get("/metrics").text
        visit(client, 5)
    assert view["exhausted"]
    assert view["claimed"] == {"epsilon": 60.0, "delta": 0.1}
    assert view["spent"][0]["epsilon"] <= 60.0
    assert {"stream", "epoch", "mechanism", "releases", "observations", "mu", "epsilon"} == set(
        view["streams"][0]
    )
    assert "fclub_privacy_exhausted 1.0" in metrics
    assert 'fclub_privacy_epsilon{delta="1e-05"}' in metrics
    assert any("budget" in event["event"] for event in runner.monitor.recent)
    answer = CliRunner().invoke(app, ["--ledger", str(tmp_path / "local.db"), "--json"])
    assert answer.exit_code == 0
    spent = msgspec.json.decode(answer.stdout)["spent"]
    assert spent[0][0] == pytest.approx(view["spent"][0]["epsilon"])


def test_a_server_whose_plan_is_over_says_so(tmp_path: Path) -> None:
    """What an earlier process may have sent is charged, all of it."""
    plan = make_plan(
        epsilon=1.0, delta=1e-5, dim=DIM, users=3, members=1, visits=(1.0, 2.0), secure=False, start=1e9
    )
    model = Model(dim=DIM, parameters={"plan": plan.encode().decode()})
    application, runner = local_app(local_settings(tmp_path, model=model))
    with serving(application) as client:
        while not client.get("/healthz").json()["privacy_exhausted"]:
            visit(client, 3)
        (spent, *_) = client.get("/v1/privacy").json()["spent"]
        assert spent["epsilon"] == pytest.approx(1.0, rel=1e-3)
        assert client.get("/v1/privacy").json()["exhausted"]
        assert "fclub_privacy_exhausted 1.0" in client.get("/metrics").text
    assert any("nothing more is released" in event["event"] for event in runner.monitor.recent)


def test_a_store_without_a_ledger_is_named(tmp_path: Path) -> None:
    settings = local_settings(tmp_path, model=Model(policy="fclub-dc", dim=DIM))
    node = local_node(settings)
    assert privacy_view(node.books).claimed is None
    assert node.sessions.channel.peer == GLOBAL
    node.store.close()
    with pytest.raises(InvalidFile, match="no ledger"):
        read_books(tmp_path / "local.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(InvalidFile, match="not the store"):
        read_books(tmp_path / "other.db")
