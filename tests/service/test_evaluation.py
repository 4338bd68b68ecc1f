"""Choices with probabilities: stored with offers, exported, evaluated, compared with live runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from benchmarks.offline import Plan, repeat
from typer.testing import CliRunner

from fclub import Client
from fclub.cli.store import app
from fclub.environments.logs import read_log
from fclub.errors import InvalidFile
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import check_store, forget_user, local_node
from fclub.service.serve import local_app
from fclub.service.settings import LocalSettings, Model
from fclub.service.store.decisions import coin_of
from fclub.service.store.export import export_log

from .conftest import DIM, TOKEN, local_settings, offer, serving

UNIFORM = 0.4


def mixed_settings(path: Path, uniform: float = UNIFORM) -> LocalSettings:
    return local_settings(path, model=Model(dim=DIM, uniform=uniform))


def rows_of(count: int, seed: int = 0) -> tuple[list[str], Any]:
    items = offer(np.random.default_rng(seed), count)
    return [item["id"] for item in items], np.array([item["features"] for item in items])


def stored(node: LocalNode) -> list[tuple[bytes, str, float]]:
    sql = "SELECT id, item, chance FROM decisions JOIN offers ON decision = id ORDER BY id"
    return node.store.reader.execute(sql).fetchall()


def test_a_choice_follows_from_the_id_of_its_decision(tmp_path: Path) -> None:
    """Without feedback the best item stays the same."""
    node = local_node(mixed_settings(tmp_path))
    ids, items = rows_of(5)
    node.bound("ann")
    best = ids[node.server.recommend(0, items)]
    for _ in range(300):
        node.recommend("ann", items, ids)
    node.commit()
    shown = stored(node)
    assert len(shown) == 300
    assert {item for _, item, _ in shown} == set(ids)
    for key, item, chance in shown:
        coin = coin_of(key)
        assert item == (ids[int(coin / UNIFORM * 5)] if coin < UNIFORM else best)
        assert chance == pytest.approx(UNIFORM / 5 + (1.0 - UNIFORM) * (item == best))
    node.store.close()


def test_ids_ascend_unless_the_clock_is_set_back_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions are exported, shown to their users and dropped in the order of their ids."""
    node = local_node(mixed_settings(tmp_path))
    for clock in (2e9, 2e9, 2e9 - 30.0):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        node.recommend("ann", *rows_of(5)[::-1])
        several = [node.decisions.new_key("ann") for _ in range(70_000)]
        assert several == sorted(set(several))
    monkeypatch.setattr(time, "time", lambda: 2.1e9)
    node.recommend("ann", *rows_of(5)[::-1])
    node.commit()
    made = [made for _, _, _, made, *_ in node.decisions.of_user(0)]
    assert made == [2e9, 2e9, 2e9 - 30.0, 2.1e9]
    monkeypatch.setattr(time, "time", lambda: 1.9e9)
    assert node.decisions.new_key("ann") < several[0], "or they would never be old"
    node.store.close()


def test_a_restart_draws_nothing_again(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path)
    node, (ids, items) = local_node(settings), rows_of(5)
    for t in range(40):
        shown = node.recommend(f"u{t % 3}", items, ids)
        node.rewards.feedback(shown.id, float(t % 2))
    node.commit()
    before = stored(node), {k: v.tobytes() for k, v in node.server.state()[0].items()}
    node.store.close()
    again = local_node(settings)
    assert before == (stored(again), {k: v.tobytes() for k, v in again.server.state()[0].items()})
    again.store.close()


def test_without_mixing_no_offer_is_kept(tmp_path: Path) -> None:
    with (
        serving(local_app(local_settings(tmp_path))[0]) as client,
        Client(str(client.base_url), TOKEN) as shop,
    ):
        shop.recommend("ann", {"a": [1.0, 0, 0, 0], "b": [0, 1.0, 0, 0]})
        (shown,) = shop.user_data("ann")["decisions"]
        assert (shown["probability"], shown["offer"], shown["assumed"]) == (None, None, False)


@pytest.fixture
def loop(tmp_path: Path) -> LocalSettings:
    """A server that offers its own items, parts of a catalogue that changes, and all of it."""
    settings = mixed_settings(tmp_path)
    with serving(local_app(settings)[0]) as client, Client(str(client.base_url), TOKEN) as shop:
        _use(client, shop)
    return settings


def _use(client: httpx.Client, shop: Client) -> None:
    shop.put_items({"a": [1.0, 0, 0, 0], "b": [0, 1.0, 0, 0], "c": [0, 0, 1.0, 0]})
    first = shop.recommend("ann", exclude_seen=False)
    shop.put_items({"b": [0, 0.5, 0, 0], "d": [0, 0, 0, 1.0]})
    second = shop.recommend("ann", exclude=["c"], exclude_seen=False)
    shop.delete_item("a")
    third = shop.recommend("bob", ["b", "d"], exclude_seen=False)
    fourth = shop.recommend("bob", {"own": [0.1, 0.2, 0.3, 0.4], "b": [0, 0.5, 0, 0]})
    several = shop.recommend_several("bob", 3, exclude_seen=False)
    unseen = shop.recommend_several("ann", 2, {"x": [0.5, 0, 0, 0], "y": [0, 0.5, 0, 0]}, exclude=["y"])
    for one in (first, second, third, fourth, *several, *unseen):
        shop.feedback(one.decision, 1.0)
    shop.recommend("cat")
    shown = shop.user_data("ann")["decisions"]
    assert [one["offer"] for one in shown] == [
        {"version": 1, "items": None, "without": []},
        {"version": 2, "items": None, "without": ["c"]},
        {"version": 3, "items": ["x"], "without": []},
    ]
    assert [one["probability"] for one in shown[2:]] == [1.0]
    told = [one["probability"] for one in shop.user_data("bob")["decisions"]]
    assert told[0] in (pytest.approx(0.2), pytest.approx(0.8))
    (first_place,) = [chance for chance in told[2:] if chance is not None]
    assert first_place in (pytest.approx(UNIFORM / 3), pytest.approx(1.0 - UNIFORM * 2 / 3))


def test_an_export_has_every_offer_as_it_was(loop: LocalSettings, tmp_path: Path) -> None:
    log, items = tmp_path / "log.jsonl", tmp_path / "items.csv"
    words = ["export", loop.store, "--log", str(log), "--items", str(items), "--json"]
    done = CliRunner().invoke(app, words)
    assert json.loads(done.stdout) == {"rounds": 6, "items": 7, "unanswered": 1}
    found = read_log(log, items)
    assert [log.stat().st_mode & 0o777, items.stat().st_mode & 0o777] == [0o600, 0o600]
    offered = [{tuple(found.features[k]) for k in found.on_offer(t)} for t in range(6)]
    a, b, c, d = (tuple(row) for row in np.eye(4).tolist())
    half = (0.0, 0.5, 0.0, 0.0)
    assert offered == [
        {a, b, c},
        {a, half, d},
        {half, d},
        {(0.1, 0.2, 0.3, 0.4), half},
        {half, c, d},
        {(0.5, 0.0, 0.0, 0.0)},
    ]
    assert found.users.tolist() == [0, 0, 1, 1, 1, 0]
    assert found.rewards.tolist() == [1.0] * 6
    assert "ann" not in log.read_text()
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, InvalidFile)


def test_what_is_forgotten_is_not_exported(loop: LocalSettings, tmp_path: Path) -> None:
    forget_user(Path(loop.store), "bob")
    done = export_log(Path(loop.store), tmp_path / "log.jsonl", tmp_path / "items.csv")
    assert done.rounds == 3
    node = local_node(loop)
    (offers,) = node.store.reader.execute("SELECT count(*) FROM offers").fetchone()
    assert offers == 4, "those of ann, and of cat"
    while node.forget(before=4e9):
        node.commit()
    for table in ("offers", "former", "decisions"):
        assert node.store.reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    node.store.close()
    assert check_store(loop)["users"] == 2


def test_only_stores_of_local_servers_are_exported(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path)
    with serving(local_app(settings)[0]):
        pass
    with pytest.raises(InvalidFile, match="local server"):
        export_log(Path(f"{settings.store}.global"), tmp_path / "log.jsonl", tmp_path / "items.csv")
    assert not (tmp_path / "log.jsonl").exists()


@pytest.mark.slow
def test_an_export_tells_what_another_policy_earns_live() -> None:
    """`benchmarks/offline.py` is the long form: 40 repetitions of 10,000 rounds."""
    repetitions = [repeat(seed, Plan(rounds=4000, uniform=0.2, stars=True)) for seed in range(6)]
    assert sum(one.holds("doubly_robust") for one in repetitions) >= 5
    widths = [one.width("doubly_robust") / one.width("replay") for one in repetitions]
    assert np.mean(widths) < 0.8
