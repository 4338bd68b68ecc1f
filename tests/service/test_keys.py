"""Keys: who may ask what, until when, and what the file and the commands make of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import Command
from typer.testing import CliRunner

from fclub.cli.keys import app
from fclub.errors import Forbidden, InvalidFile, InvalidSetting, Unauthorized
from fclub.service.http import api, global_api
from fclub.service.http.keys import (
    ADMIN,
    CATALOGUE,
    FEEDBACK,
    METRICS,
    NEEDS,
    PRIVACY,
    RECOMMEND,
    SCOPES,
    SIMULATE,
    KeyFile,
    Keys,
    hash_token,
    keys_of,
    needed,
    new_token,
)
from fclub.service.link.broker import LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.monitoring import Monitor
from fclub.service.serve import global_app, local_app
from fclub.service.settings import GlobalSettings, Http, Model, Nats

from .conftest import DIM, local_settings, serving

EVERYTHING = (*SCOPES, SIMULATE)
DAY = 86_400.0


def a_key_for_each_scope(path: Path) -> Http:
    """The token of each is the scope."""
    for scope in EVERYTHING:
        KeyFile(path / "all.keys").add(scope, [scope], token=scope)
    return Http(keys=str(path / "all.keys"), simulated=True)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[tuple[httpx.Client, Any]]:
    made, _ = local_app(local_settings(tmp_path, http=a_key_for_each_scope(tmp_path)))
    with serving(made) as client:
        yield client, made


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[httpx.Client, Any]]:
    broker = LocalBroker(tmp_path / "nats", {"s0": "one", GLOBAL: "two"})
    broker.start()
    settings = GlobalSettings(
        model=Model(dim=DIM),
        store=str(tmp_path / "global.db"),
        servers=["s0"],
        signers={"s0": ["ab" * 32]},
        http=a_key_for_each_scope(tmp_path),
        nats=Nats(url=broker.url, user=GLOBAL, password="two"),
    )
    made, _ = global_app(settings)
    with serving(made) as client:
        yield client, made
    broker.stop()


def status(client: httpx.Client, method: str, path: str, token: str) -> int:
    """Of a request without a body; a stream is not read."""
    target = re.sub(r"{\w+}", "any", path.replace(":path", ""))
    with client.stream(method, target, headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status_code


@pytest.mark.parametrize("which", ["local", "hub"])
def test_every_route_needs_exactly_its_scope(which: str, request: pytest.FixtureRequest) -> None:
    client, made = request.getfixturevalue(which)
    for route in made.routes:
        (method,) = route.methods - {"HEAD"}
        scope = needed(method, route.path)
        let_in = {
            one for one in EVERYTHING if status(client, method, route.path, one) not in (401, 403)
        }
        assert let_in == ({scope} if scope else set(EVERYTHING)), route.path
        assert scope is None or status(client, method, route.path, "unknown") == 401


@pytest.mark.parametrize(
    ("path", "scope", "key"),
    [
        ("items/x/similar", RECOMMEND, "items"),
        ("items/x%2Fsimilar", CATALOGUE, "id"),
        ("items/x%2fsimilar/similar", RECOMMEND, "items"),
        ("items/x%2Fliked", CATALOGUE, "id"),
        ("items/x/liked", ADMIN, "opinions"),
        ("items/similar", CATALOGUE, "id"),
        ("users/ann%2Fpreview", PRIVACY, "cluster"),
        ("users/ann%2Fpreview/preview", ADMIN, "items"),
        ("%75sers/ann%2Fdata", PRIVACY, "cluster"),
        ("users/ann%2Fdata/data", PRIVACY, "decisions"),
    ],
)
def test_a_quoted_slash_leads_to_no_other_route(
    local: tuple[httpx.Client, Any], path: str, scope: str, key: str
) -> None:
    """The scope that is asked for is that of what is answered."""
    client, _ = local
    items = [{"id": name, "features": [0.5] * DIM} for name in ("x", "x/similar", "x/liked", "similar")]
    client.put("/v1/items", json={"items": items}, headers={"Authorization": "Bearer catalogue"})
    for name in ("ann", "ann/preview", "ann/data"):
        asked = {"user": name, "items": ["x"]}
        client.post("/v1/recommend", json=asked, headers={"Authorization": "Bearer recommend"})
    let_in = {one for one in SCOPES if status(client, "GET", f"/v1/{path}", one) == 200}
    assert let_in == {scope}
    answer = client.get(f"/v1/{path}", headers={"Authorization": f"Bearer {scope}"})
    assert key in answer.json()


def test_no_line_of_the_table_is_left_over(tmp_path: Path) -> None:
    made, runner = local_app(local_settings(tmp_path))
    runner.node.store.close()
    routes: list[Any] = made.routes
    there = {re.sub(r":\w+}", "}", route.path) for route in routes}
    assert {path for _, path in NEEDS} - there == {
        "/v1/servers",
        "/v1/slots",
        "/v1/servers/{server}/release",
    }


def test_the_description_for_machines_names_scopes() -> None:
    for described in (api.openapi(DIM), global_api.openapi()):
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                assert operation["security"] == [{"key": [NEEDS[method.upper(), path]]}]


def test_simulated_visitors_are_unknown_to_a_real_server(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "s.keys")
    header = bearer(file.add("visitors", [SIMULATE, RECOMMEND]))
    Keys(file, simulated=True).admit(header, SIMULATE)
    real = Keys(file)
    real.admit(header, RECOMMEND)
    with pytest.raises(Forbidden, match="simulate"):
        real.admit(header, SIMULATE)


def bearer(token: str) -> bytes:
    return f"Bearer {token}".encode()


def refused(call: Callable[[], None]) -> str:
    with pytest.raises((Unauthorized, Forbidden)) as found:
        call()
    return str(found.value)


def test_keys_come_end_and_go_while_a_server_runs(tmp_path: Path) -> None:
    now = 1000.0
    file = KeyFile(tmp_path / "s.keys")
    keys = Keys(file, clock=lambda: now)
    assert len(keys) == 0
    header = bearer(file.add("shop", [RECOMMEND, FEEDBACK], expires=now + DAY))
    assert "valid token" in refused(lambda: keys.admit(header, RECOMMEND))
    keys.look()
    keys.admit(header, RECOMMEND)
    assert refused(lambda: keys.admit(header, METRICS)) == (
        "this needs the scope metrics; the key shop has feedback, recommend"
    )
    now += DAY - 1.0
    keys.admit(header, FEEDBACK)
    now += 1.0
    assert "the key shop has expired" in refused(lambda: keys.admit(header, FEEDBACK))
    now -= DAY
    assert "has expired" in refused(lambda: keys.admit(header, FEEDBACK)), "a clock was set back"
    file.revoke("shop")
    keys.look()
    assert "valid token" in refused(lambda: keys.admit(header, FEEDBACK))


def test_a_clock_a_day_ahead_ends_what_ends_that_day_and_nothing_else(tmp_path: Path) -> None:
    now, file = 1000.0, KeyFile(tmp_path / "s.keys")
    short, longer = (
        bearer(file.add(name, [RECOMMEND], now + d)) for name, d in (("a", 60), ("b", 2 * DAY))
    )
    keys = Keys(file, clock=lambda: now)
    now += DAY
    keys.admit(longer, RECOMMEND)
    assert "expired" in refused(lambda: keys.admit(short, RECOMMEND))


def test_the_last_use_is_noted_once_a_minute(tmp_path: Path) -> None:
    now, file = 1000.0, KeyFile(tmp_path / "s.keys")
    keys, header = Keys(file, clock=lambda: now), b""
    header = bearer(file.add("shop", [RECOMMEND]))
    keys.look()
    keys.admit(header, RECOMMEND)
    now += 59.0
    keys.look()
    assert file.read()["shop"].used is None
    now += 1.0
    keys.look()
    assert file.read()["shop"].used == now
    version = file.version
    now += 600.0
    keys.look()
    assert file.version == version, "nobody came"


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "s.keys")
    header = bearer(file.add("shop", [RECOMMEND]))
    keys = Keys(file)
    file.path.write_text("{")
    keys.look()
    keys.admit(header, RECOMMEND)
    with pytest.raises(InvalidFile, match="expected a file of fclub keys"):
        Keys(file)


def test_a_file_that_cannot_be_read_is_told_once_when_it_begins_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fclub.service.http.keys.LOOK_SECONDS", 0.001)
    file, monitor = KeyFile(tmp_path / "s.keys"), Monitor("local")
    file.add("shop", [RECOMMEND])
    whole, keys = file.path.read_bytes(), Keys(file)

    async def run() -> None:
        watch = asyncio.create_task(keys.watch(monitor))
        for text in (b'{"secret', b"[]", whole):
            file.path.write_bytes(text)
            await asyncio.sleep(0.1)
        watch.cancel()

    asyncio.run(run())
    assert [{**one, "at": 0} for one in monitor.recent] == [
        {"at": 0, "event": "keys not read", "file": "s.keys", "error": "InvalidFile"},
        {"at": 0, "event": "keys read again", "file": "s.keys"},
    ]


def test_a_file_holds_no_token_and_is_its_owners_alone(tmp_path: Path) -> None:
    file = KeyFile(keys_of(tmp_path / "shop.db"))
    assert file.path.name == "shop.db.keys"
    assert keys_of(file.path) == file.path
    token = file.add("shop", [RECOMMEND])
    assert token not in file.path.read_text()
    assert hash_token(token) in file.path.read_text()
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_what_root_makes_belongs_to_whom_the_folder_belongs(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can do that")
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 10001, 10002)
    file = KeyFile(tmp_path / "state" / "s.keys")
    file.add("shop", [RECOMMEND])
    found = file.path.stat()
    assert (found.st_uid, found.st_gid) == (10001, 10002)


def test_two_who_change_the_file_at_once_lose_nothing(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "s.keys")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: file.add(f"k{number}", [RECOMMEND]), range(40)))
    assert len(file.read()) == 40


@pytest.mark.parametrize(
    ("name", "scopes", "told"),
    [
        ("a b", [RECOMMEND], "expected a name"),
        ("shop", ["recomend"], "got 'recomend'"),
        ("shop", [], "got none"),
        ("taken", [RECOMMEND], "revoke it first"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(
    tmp_path: Path, name: str, scopes: list[str], told: str
) -> None:
    file = KeyFile(tmp_path / "s.keys")
    file.add("taken", [ADMIN])
    before = file.path.read_bytes()
    with pytest.raises(InvalidSetting, match=told):
        file.add(name, scopes)
    with pytest.raises(InvalidSetting, match="there are: taken"), suppress(KeyError):
        file.revoke("shop")
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("days", ["inf", "nan", "36501", "1e300", "-1"])
def test_days_have_a_limit(tmp_path: Path, command: Command, days: str) -> None:
    store = str(tmp_path / "shop.db")
    done = command("keys", "add", store, "shop", "--scopes", RECOMMEND, "--days", days)
    assert done.returncode == 2
    assert "days" in done.stderr
    assert "Traceback" not in done.stderr
    assert not keys_of(store).exists()


def test_any_date_is_listed(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "s.keys")
    for k, moment in enumerate((1e300, -1e300, 1e12, 0.0)):
        file.add(f"k{k}", [RECOMMEND], expires=moment)
    done = CliRunner().invoke(app, ["list", str(file.path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "1e+300 seconds after 1970" in done.stdout


def test_commands(tmp_path: Path) -> None:
    store = str(tmp_path / "shop.db")

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, [*words])
        assert done.exit_code == 0, done.output
        return done.stdout

    token = run("add", store, "shop", "--scopes", "recommend, feedback", "--days", "1").strip()
    Keys(KeyFile(keys_of(store))).admit(bearer(token), FEEDBACK)
    (listed,) = json.loads(run("list", store, "--json"))
    assert (listed["name"], listed["scopes"], listed["used"]) == (
        "shop",
        ["feedback", "recommend"],
        None,
    )
    assert listed["expires"] - listed["made"] == pytest.approx(DAY, abs=5.0)
    assert "shop" in run("list", store)
    assert token not in run("list", store)
    run("revoke", store, "shop")
    assert json.loads(run("list", store, "--json")) == []
    assert len(new_token()) > 40
