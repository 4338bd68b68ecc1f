"""Shards of one site leave sums for each other: files of their owner, entries of the log only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from fclub.cli.store import app
from fclub.service.monitoring import Monitor
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import local_node
from fclub.service.nodes.siblings import Siblings
from fclub.service.serve import local_app
from fclub.service.settings import LocalSettings, Model
from fclub.service.store.backup import backup_store, restore_store, sums_file

from .conftest import DIM, local_settings, offer, serving, wait_for

MODEL = Model(dim=DIM, parameters={"few": 5, "types": 4, "ratio": 1.2})


class Shard:
    """One of two shards of a site, without its process."""

    def __init__(self, folder: Path, number: int) -> None:
        stores = [str(folder / "site.db"), str(folder / "site-1.db")]
        names = {"name": f"site-{number}", "store": stores[number], "shard": number}
        names["shard_stores"] = stores
        self.settings: LocalSettings = local_settings(folder, model=MODEL, **names)
        self.number, self.monitor = number, Monitor("local")
        self.node = self.opened()

    def opened(self) -> LocalNode:
        node = local_node(self.settings)
        self.siblings = Siblings(node, self.settings, self.monitor)
        return node

    @property
    def file(self) -> Path:
        return sums_file(self.settings.store)

    def play(self, visits: int, seed: int = 0) -> None:
        """Visits, with what its runner does between the parts of the work that they make due."""
        rng = np.random.default_rng(seed)
        for t in range(visits):
            items = rng.uniform(-0.5, 0.5, (4, DIM))
            decision = self.node.recommend(f"user-{self.number}-{t % 9}", items, list("abcd"))
            self.node.feedback(decision.id, float(rng.random() < 0.5))
            self.work()

    def work(self) -> None:
        self.siblings.exchange()
        while (part := self.node.part()) is not None:
            part()
            self.siblings.exchange()
        self.node.commit()

    def restarted(self) -> LocalNode:
        """The node of a process that was killed and started again."""
        self.node.store.close()
        self.node = self.opened()
        return self.node

    @property
    def heard(self) -> int:
        """Users of the other shard that it knows sums of."""
        users: int = self.node.server.grown.site.users
        return users


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Shard, Shard]]:
    shards = Shard(tmp_path, 0), Shard(tmp_path, 1)
    yield shards
    for one in shards:
        one.node.store.close()


def test_shards_hear_of_each_others_users(site: tuple[Shard, Shard]) -> None:
    one, two = site
    one.play(60)
    assert one.heard == 0
    assert os.stat(one.file).st_mode & 0o777 == 0o600, "for its owner alone"
    two.play(60, seed=1)
    one.work()
    assert (one.heard, two.heard) == (9, 9)
    entries = one.node.entry
    one.work()
    assert one.node.entry == entries, "what is no news is not written again"


def test_a_restart_leads_to_the_same_state(site: tuple[Shard, Shard]) -> None:
    one, two = site
    for seed in range(3):
        one.play(40, seed)
        two.play(40, 10 + seed)
    one.work()
    arrays, values = one.node.server.state()
    again, same = one.restarted().server.state()
    assert one.heard == 9
    assert same == values
    assert all(np.array_equal(again[name], arrays[name]) for name in arrays)
    entries = one.node.entry
    one.siblings.exchange()
    assert one.node.entry == entries, "a new process hears the same, which is no news"


@pytest.mark.parametrize("running", [True, False])
def test_who_is_forgotten_is_in_no_file(site: tuple[Shard, Shard], running: bool) -> None:
    one, two = site
    one.play(60)
    two.play(60, seed=1)
    assert two.heard == 9
    if running:
        one.node.forget_user("user-0-3")
        one.siblings.exchange()
        one.node.commit()
    else:
        one.node.store.close()
        told = CliRunner().invoke(app, ["forget", one.settings.store, "user-0-3"])
        assert told.exit_code == 0, told.output
        one.node = one.opened()
    assert not one.file.exists()
    two.siblings.exchange()
    erasing = two.node.erasing
    assert erasing, "its log holds sums with the user"
    two.node.commit()
    assert two.heard == 0
    log = sqlite3.connect(two.settings.store)
    assert log.execute("SELECT count(*) FROM log WHERE kind = 'shard' AND body != x''").fetchone() == (
        0,
    )
    log.close()
    one.play(60, seed=2)
    two.work()
    assert two.heard == 10, "the name came back as a new user; the old row stays, empty"


@pytest.mark.parametrize("damage", [b"", b"no sums", b"\x93\x09\x00\xc4\x08" + bytes(8)])
def test_a_damaged_file_is_refused_and_nothing_stops(site: tuple[Shard, Shard], damage: bytes) -> None:
    one, two = site
    two.play(60, seed=1)
    one.play(60)
    assert one.heard == 9
    two.file.write_bytes(damage)
    for _ in range(3):
        one.work()
    events = [entry["event"] for entry in one.monitor.recent]
    assert events == ["sums of shards not exchanged"] * bool(damage), "once"
    assert one.heard == (9 if damage else 0)
    two.play(40, seed=3)
    one.work()
    assert one.heard == 9


def test_a_file_that_cannot_be_read_is_named_and_read_later(site: tuple[Shard, Shard]) -> None:
    one, two = site
    one.play(60)
    two.file.mkdir()
    one.work()
    assert one.monitor.recent[-1]["event"] == "sums of shards not exchanged"
    two.file.rmdir()
    two.play(60, seed=1)
    one.work()
    assert one.heard == 9


def test_a_server_that_is_no_shard_any_more_keeps_nothing_of_others(site: tuple[Shard, Shard]) -> None:
    one, two = site
    two.play(60, seed=1)
    one.play(60)
    left = one.file.with_name(f".{one.file.name}.unfinished")
    left.write_bytes(b"of a crash")
    one.settings = replace(one.settings, shard_stores=[], shard=0)
    one.restarted()
    one.siblings.exchange()
    assert one.heard == 0
    assert not one.file.exists()
    assert not left.exists()


def test_a_restored_store_tells_nothing_of_later(site: tuple[Shard, Shard], tmp_path: Path) -> None:
    one, _ = site
    one.play(60)
    backup_store(Path(one.settings.store), tmp_path / "backup.db")
    one.node.store.close()
    restore_store(tmp_path / "backup.db", Path(one.settings.store), replace=True)
    assert not one.file.exists()
    one.node = one.opened()


@pytest.mark.parametrize("stores", [["other.db"], ["site.db", "other.db"], ["site.db"] * 2, []])
def test_stores_of_shards_have_to_be_in_their_places(stores: list[str]) -> None:
    given: dict[str, Any] = {"model": MODEL, "store": "site.db", "shard_stores": stores, "shard": 1}
    if stores:
        with pytest.raises(ValueError, match="shard_stores"):
            LocalSettings(**given)
    else:
        LocalSettings(**given)


def test_forgetting_over_http_takes_sums_back_before_it_answers(tmp_path: Path) -> None:
    """Also where few users were there since the last snapshot, which is whole at once."""
    stores = [str(tmp_path / "local.db"), str(tmp_path / "other.db")]
    settings = local_settings(tmp_path, model=MODEL, shard_stores=stores)
    with serving(local_app(settings)[0]) as client:
        for seed in range(60):
            items = offer(np.random.default_rng(seed))
            body = {"user": f"u{seed % 9}", "items": items}
            shown = client.post("/v1/recommend", json=body).json()
            client.post("/v1/feedback", json={"decision": shown["decision"], "reward": 1.0})
        file = sums_file(settings.store)
        wait_for(file.exists)
        assert client.delete("/v1/users/u3").status_code == 200
        told = file.read_bytes() if file.exists() else msgspec.msgpack.encode([9, 1, b""])
        assert msgspec.msgpack.decode(told)[:2] == [9, 1], "none, or new ones without the user"


def test_sums_that_cannot_be_taken_back_are_not_called_erased(tmp_path: Path) -> None:
    """A folder in the place of the file stands for a disk that refuses."""
    stores = [str(tmp_path / "local.db"), str(tmp_path / "other.db")]
    settings = local_settings(tmp_path, model=MODEL, shard_stores=stores)
    sums_file(settings.store).mkdir()
    with serving(local_app(settings)[0]) as client:
        client.post("/v1/recommend", json={"user": "ann", "items": offer(np.random.default_rng(0))})
        answer = client.delete("/v1/users/ann")
        assert (answer.status_code, answer.json()["erased"]) == (200, False)
