"""A site of several local servers behind one port: homes, routes, and the real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from fclub.errors import InvalidSetting
from fclub.service.fleet import Server
from fclub.service.link.broker import LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.settings import Model
from fclub.service.shards.homes import Homes, homes_of, shards_file, store_of
from fclub.service.shards.router import merged
from fclub.service.shards.supervisor import run_site

from .conftest import DIM, TOKEN, local_settings, offer, wait_for

NAMES = ["site", "site-1", "site-2"]
USERS = [f"user {number}/é" for number in range(12)]


def test_names_are_spread_evenly_and_stay() -> None:
    names = [f"user-{number}" for number in range(3000)]
    two, three = Homes([2]), Homes([2, 3])
    at = np.array([two.places(name)[0] for name in names])
    assert 1350 < at.sum() < 1650
    for name in names[:100]:
        newest, *older = three.places(name)
        assert newest == Homes([3]).places(name)[0]
        assert [newest, *older] == list(dict.fromkeys([newest, *two.places(name)]))


def test_a_site_remembers_how_many_shards_it_had(tmp_path: Path) -> None:
    store = tmp_path / "shop.db"
    store.touch()
    assert homes_of(store, 2).counts == (1, 2)
    assert homes_of(store, 3).counts == (1, 2, 3)
    assert homes_of(store, 2).counts == (1, 3, 2), "what was before is still asked"
    assert homes_of(store, 2).shards == 3
    new = tmp_path / "new.db"
    assert homes_of(new, 2).counts == (2,)
    assert shards_file(new).exists()
    assert store_of(new, 0) == new
    assert store_of(new, 1).name == "new-1.db"


@pytest.mark.parametrize("count", [0, 257])
def test_impossible_numbers_of_shards_are_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(InvalidSetting, match="--shards"):
        homes_of(tmp_path / "shop.db", count)


def test_shards_without_a_broker_are_refused(tmp_path: Path) -> None:
    settings = local_settings(tmp_path)
    with pytest.raises(InvalidSetting, match=r"nats\.url"):
        run_site(settings, 2, [], lambda: settings)
    assert not list(tmp_path.iterdir())


def test_metrics_of_all_shards_are_one_text() -> None:
    text = b'# HELP a what\n# TYPE a gauge\na 1\n# HELP b more\n# TYPE b counter\nb{route="/"} 2\n'
    assert merged({"s": text, "s-1": text}).decode().splitlines() == [
        "# HELP a what",
        "# TYPE a gauge",
        'a{shard="s"} 1',
        'a{shard="s-1"} 1',
        "# HELP b more",
        "# TYPE b counter",
        'b{shard="s",route="/"} 2',
        'b{shard="s-1",route="/"} 2',
    ]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A broker and a global server that know all names; yields settings of the site."""
    broker = LocalBroker(tmp_path / "nats", dict.fromkeys([*NAMES, GLOBAL], "secret"))
    common = {"model": msgspec.to_builtins(Model(dim=DIM)), "nats__url": broker.url}
    common |= {"nats__password": "secret"}
    own = {"store": str(tmp_path / "global.db"), "servers": NAMES, "nats__user": GLOBAL}
    hub = Server("global", GLOBAL, tmp_path, common | own, TOKEN)
    broker.start()
    try:
        hub.start()
        hub.wait_until_ready()
        yield common | {"name": "site", "store": str(tmp_path / "site.db"), "nats__user": "site"}
    finally:
        hub.stop()
        broker.stop()


@contextmanager
def site(folder: Path, settings: dict[str, Any], *options: str) -> Iterator[httpx.Client]:
    server = Server("local", "site", folder, settings, TOKEN, options=options)
    server.start()
    try:
        server.wait_until_ready()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            yield client
    finally:
        server.stop()


def visited(client: httpx.Client, user: str) -> str:
    """A recommendation and its feedback; returns the decision."""
    items = offer(np.random.default_rng(len(user)))
    shown = client.post("/v1/recommend", json={"user": user, "items": items})
    assert shown.status_code == 200, shown.text
    decision: str = shown.json()["decision"]
    learned = client.post("/v1/feedback", json={"decision": decision, "reward": 1.0})
    assert learned.json() == {"counted": True}
    return decision


def counts(client: httpx.Client, prefix: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for user in USERS:
        answer = client.get(f"{prefix}/v1/users/{user.replace('/', '%2F')}")
        found |= {user: answer.json()["observations"]} if answer.status_code == 200 else {}
    return found


@pytest.mark.slow
def test_a_site_grows_from_one_server_to_two(tmp_path: Path, federation: dict[str, Any]) -> None:
    with site(tmp_path, federation) as client:
        old = [visited(client, user) for user in USERS[:6]]
    with site(tmp_path, federation, "--shards", "2") as client:
        assert counts(client, "/shards/0") == dict.fromkeys(USERS[:6], 1)
        for user in USERS:
            visited(client, user)
        assert counts(client) == dict.fromkeys(USERS[:6], 2) | dict.fromkeys(USERS[6:], 1)
        at = [set(counts(client, f"/shards/{number}")) for number in (0, 1)]
        assert at[0] >= set(USERS[:6]), "known users stay"
        assert at[1], "new ones are spread"
        assert not at[0] & at[1]
        check_batches(client, old[0])
        check_catalogue(client)
        check_overviews(client)
        check_forgetting(client, next(iter(at[1])))
        check_crash(client)


def check_batches(client: httpx.Client, old: str) -> None:
    items = offer(np.random.default_rng(5))
    entries: list[Any] = [{"user": user, "items": items} for user in USERS]
    entries.insert(3, {"items": items})
    answer = client.post("/v1/recommend/batch", json={"requests": entries})
    assert answer.status_code == 422, "a batch with a malformed entry is refused as by one server"
    del entries[3]
    results = client.post("/v1/recommend/batch", json={"requests": entries}).json()["results"]
    assert [result["status"] for result in results] == [200] * len(USERS)
    decisions = [result["result"]["decision"] for result in results]
    assert {decision[-2:] for decision in decisions} == {"00", "01"}
    told = [{"decision": decision, "reward": 0.5} for decision in [*decisions, "0" * 32]]
    results = client.post("/v1/feedback/batch", json={"requests": told}).json()["results"]
    assert [result["status"] for result in results] == [200] * len(USERS) + [404]
    wrong = f"{old[:-2]}01"
    assert client.post("/v1/feedback", json={"decision": wrong, "reward": 1.0}).status_code == 404
    past = [
        {"id": f"p{n}", "user": u, "features": [0.6, 0.8, 0, 0], "reward": 1.0}
        for n, u in enumerate(USERS)
    ]
    results = client.post("/v1/observations", json={"observations": past}).json()["results"]
    assert [result["status"] for result in results] == [200] * len(USERS)


def check_catalogue(client: httpx.Client) -> None:
    put = client.put("/v1/items", json={"items": offer(np.random.default_rng(1))})
    assert put.status_code == 200
    for prefix in ("", "/shards/0", "/shards/1"):
        assert client.get(f"{prefix}/v1/items").json()["count"] == 5
    assert client.post("/v1/recommend", json={"user": USERS[0], "count": 2}).status_code == 200
    assert client.delete("/v1/items/item-0").status_code == 200
    assert client.get("/shards/1/v1/items").json()["count"] == 4


def check_overviews(client: httpx.Client) -> None:
    assert client.get("/readyz").json() == {"ready": True, "shards": [True, True]}
    wait_for(lambda: client.get("/healthz").json()["status"] == "ok")
    assert set(client.get("/healthz").json()["shards"]) == {"site", "site-1"}
    metrics = client.get("/metrics").text
    assert 'fclub_users{shard="site"}' in metrics
    assert metrics.count("# TYPE fclub_users ") == 1
    assert "/shards/K/v1/privacy" in client.get("/v1/privacy").json()["error"]
    assert client.get("/shards/1/v1/privacy").json()["unit"] == "user"
    assert client.get("/shards/2/v1/privacy").status_code == 404
    assert "shards/1/" in client.get("/").text
    assert client.get("/metrics", headers={"Authorization": "Bearer no"}).status_code == 401
    assert client.post("/v1/recommend", content=b"{").status_code == 400
    assert client.post("/v1/recommend", content=b" " * (1 << 21)).status_code == 413


def check_forgetting(client: httpx.Client, user: str) -> None:
    path = f"/v1/users/{user.replace('/', '%2F')}"
    assert client.get(f"{path}/data").json()["user"] == user
    assert client.delete(path).status_code == 200
    assert client.get(path).status_code == 404


def check_crash(client: httpx.Client) -> None:
    """A shard that is killed comes back by itself, with its users."""
    before = counts(client)
    victim = next(
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and b"--set=name=site-1\0" in command_line(entry)
    )
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: client.get("/readyz").status_code == 503)
    wait_for(lambda: client.get("/readyz").status_code == 200)
    assert counts(client) == before
    for user in before:
        visited(client, user)
    assert counts(client) == {user: count + 1 for user, count in before.items()}


def command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
