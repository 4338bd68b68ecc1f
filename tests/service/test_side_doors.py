"""Every number that a running server shows has a row in docs/specification/side-doors.md."""

from __future__ import annotations

import ast
import json
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Router

import fclub.service
from fclub.privacy.plan import make_plan
from fclub.protocol.exchanges import clusters as paper
from fclub.protocol.exchanges import rounds, slots, streams, user_streams
from fclub.protocol.messages import Message
from fclub.service.http import api, global_api
from fclub.service.http.gate import Routes
from fclub.service.http.global_app import GlobalService
from fclub.service.http.keys import needed
from fclub.service.link import channel as frames
from fclub.service.link.channel import GLOBAL
from fclub.service.link.wire import DirectWire
from fclub.service.monitoring import Monitor
from fclub.service.nodes.parts import global_node
from fclub.service.nodes.runner import Runner
from fclub.service.serve import local_app, running
from fclub.service.settings import GlobalSettings, Model

from .conftest import ADMIN, DIM, HTTP, local_settings, offer, serving, wait_for, with_keys

PAGE = Path(__file__).parents[2] / "docs" / "specification" / "side-doors.md"
ASK = f"give it a row in {PAGE.name}, or do not show it"
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)

Shown = set[tuple[str, str]]
"""Where a number is shown, and the name of its field."""

POLICIES: dict[str, dict[str, Any]] = {
    "user": {"policy": "cdp-fclub-plus"},
    "event": {
        "policy": "cdp-fclub-plus",
        "parameters": {"unit": "event", "first_release": 4, "release_ratio": 1.5},
    },
    "pooled": {"policy": "cdp-homo", "parameters": {"first_release": 8}},
    "printed": {"policy": "cdp-fclub-dc"},
    "exact": {"policy": "fclub-dc"},
}


def model_of(policy: str) -> Model:
    """Where slots go by the clock, one is due soon after a server has begun, whenever that is."""
    told = POLICIES[policy]
    if policy != "user":
        return Model(dim=DIM, **told)
    plan = make_plan(
        epsilon=1.0,
        delta=1e-5,
        dim=DIM,
        users=5,
        members=1,
        visits=tuple(float(k) for k in range(1, 41)),
        secure=False,
        start=time.time(),
        seconds_per_visit=5.0,
        tolerance=0.0,
    )
    return Model(dim=DIM, **told, parameters={"plan": plan.encode().decode()})


def rows() -> list[tuple[str, re.Pattern[str], str]]:
    """Where, a pattern of fields (`*` stands for any text), and who may see them."""
    return [(where, pattern_of(field), who) for where, field, who in written()]


def written() -> Iterator[tuple[str, str, str]]:
    """Where, a field as the page has it, and who may see it."""
    for where, fields, who, _ in ROW.findall(PAGE.read_text(encoding="utf-8")):
        for field in re.findall(r"`([^`]+)`", fields):
            yield where, field, who


def pattern_of(field: str) -> re.Pattern[str]:
    return re.compile(re.escape(field).replace(r"\*", ".*"))


def without_row(shown: Shown) -> Shown:
    known = rows()
    return {
        (where, field)
        for where, field in shown
        if not any(where == place and pattern.fullmatch(field) for place, pattern, _ in known)
    }


def leaves(value: Any, name: str = "") -> Iterator[str]:
    """The names of all fields that hold something."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from leaves(inside, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inside in value:
            yield from leaves(inside, f"{name}[]")
    elif value is not None:
        yield name


def of_schema(schema: dict[str, Any], known: dict[str, Any], name: str = "") -> Iterator[str]:
    """The names of all fields that a JSON schema allows, `*` where it allows any."""
    if "$ref" in schema:
        yield from of_schema(known[schema["$ref"].rpartition("/")[2]], known, name)
    for part in schema.get("anyOf", ()):
        yield from of_schema(part, known, name)
    for key, inside in schema.get("properties", {}).items():
        yield from of_schema(inside, known, f"{name}.{key}" if name else key)
    if schema.get("additionalProperties"):
        yield from of_schema(schema["additionalProperties"], known, f"{name}.*" if name else "*")
    for part in [schema.get("items"), *schema.get("prefixItems", ())]:
        if part:
            yield from of_schema(part, known, f"{name}[]")
    if schema.get("type", "object") not in ("object", "array", "null"):
        yield name


def possible() -> dict[str, set[str]]:
    """By where it is shown, every field of an answer with a fixed type, and of a message."""
    found: dict[str, set[str]] = {"message": {field for _, field in message_fields()}}
    for server, described in (("local", api.openapi(DIM)), ("global", global_api.openapi())):
        known = described["components"]["schemas"]
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                answers = [a["content"]["application/json"] for a in operation["responses"].values()]
                fields = {field for one in answers for field in of_schema(one["schema"], known)}
                found[f"{server} {method.upper()} {path}"] = fields
    return found


def test_no_row_has_a_field_that_is_never_shown() -> None:
    """Where the types of answers and messages decide that; `*` of either side stands for any text."""
    known, decided, wrong = possible(), 0, []
    for where, field, _ in written():
        fields = known.get(where.replace(":path", ""))
        if fields is not None:
            decided += 1
            row = pattern_of(field)
            if not any(row.fullmatch(one) or pattern_of(one).fullmatch(field) for one in fields):
                wrong.append((where, field))
    assert wrong == [], f"take it out of {PAGE.name}"
    assert decided > 100, "the page has these rows"


def visit(client: httpx.Client, k: int, rng: np.random.Generator) -> dict[str, Any]:
    body = {"user": f"u{k % 5}", "items": offer(rng)}
    shown: dict[str, Any] = client.post("/v1/recommend", json=body).json()
    reward = float(rng.integers(0, 2))
    assert client.post(
        "/v1/feedback", json={"decision": shown["decision"], "reward": reward}
    ).is_success
    return shown


def requests(rng: np.random.Generator) -> dict[tuple[str, str], dict[str, Any]]:
    """How each route of both servers is asked, by its method and path."""
    items, user = offer(rng), "u1"
    ask = {"user": user, "items": items}
    past = {"id": "p1", "user": user, "reward": 0.5, "features": items[0]["features"]}
    attributes = {
        "categories": ["a"],
        "tags": ["b"],
        "numbers": {"price": 1.0},
        "available_from": 0.0,
        "available_until": 9e9,
    }
    return {
        ("POST", "/v1/recommend"): {"json": ask | {"count": 2}},
        ("POST", "/v1/feedback"): {"json": {"decision": "{decision}", "reward": 1.0}},
        ("POST", "/v1/recommend/batch"): {"json": {"requests": [ask, ask | {"items": ["none"]}]}},
        ("POST", "/v1/feedback/batch"): {"json": {"requests": [{"decision": "00", "reward": 1.0}]}},
        ("POST", "/v1/observations"): {"json": {"observations": [past, past | {"reward": 1.0}]}},
        ("PUT", "/v1/items"): {"json": {"items": [one | attributes for one in items]}},
        ("POST", "/v1/visitors"): {
            "json": {"visits": 3, "policies": {"random": {"reward": 1.0, "regret": 1.0}}}
        },
        ("POST", "/v1/servers/{server}/release"): {"url": "/v1/servers/local/release"},
        ("GET", "/v1/users/{user:path}"): {"url": f"/v1/users/{user}"},
        ("GET", "/v1/users/{user:path}/data"): {"url": f"/v1/users/{user}/data"},
        ("DELETE", "/v1/users/{user:path}"): {"url": "/v1/users/u2"},
        ("GET", "/v1/items/{item:path}"): {"url": "/v1/items/item-1"},
        ("GET", "/v1/items/{item:path}/similar"): {"url": "/v1/items/item-1/similar"},
        ("GET", "/v1/items/{item:path}/liked"): {"url": "/v1/items/item-1/liked"},
        ("GET", "/v1/users/{user:path}/preview"): {"url": f"/v1/users/{user}/preview"},
        ("DELETE", "/v1/items/{item:path}"): {"url": "/v1/items/item-2"},
        ("GET", "/static/{name}"): {"url": "/static/shell.html"},
    }


def ask_all(client: httpx.Client, app: Any, server: str) -> Shown:
    """Every route, its JSON fields or its metrics; what is deleted goes last."""
    shown: Shown = set()
    examples, rng = requests(np.random.default_rng(1)), np.random.default_rng(2)
    routes = [(method, route.path) for route in app.routes for method in route.methods - {"HEAD"}]
    for method, path in sorted(routes, key=lambda known: known[0] == "DELETE"):
        where, given = f"{server} {method} {path}", dict(examples.get((method, path), {}))
        given.setdefault("url", path)
        if path == "/v1/feedback":
            ask = {"user": "u1", "items": offer(rng)}
            decision = client.post("/v1/recommend", json=ask).json()["decision"]
            given["json"] = {"decision": decision, "reward": 1.0}
        if path == "/v1/live":
            shown |= {(where, field) for field in stream(client)}
            continue
        answer = client.request(method, headers=ADMIN, **given)
        assert answer.is_success or method == "DELETE", (where, answer.text)
        if path == "/metrics":
            for family in text_string_to_metric_families(answer.text):
                labels = [[k for k in sample.labels if k != "le"] for sample in family.samples]
                shown |= {(where, family.name + "".join(f"{{{k}}}" for k in own)) for own in labels}
        elif answer.headers["content-type"] == "application/json":
            shown |= {(where, field) for field in leaves(answer.json())}
    return shown


def stream(client: httpx.Client) -> set[str]:
    """The fields of the first two events of a page's stream."""
    fields: set[str] = set()
    with client.stream("GET", "/v1/live", headers=ADMIN) as answer:
        kind, heard = "", 0
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                heard += 1
                fields |= {f"{kind}: {f}" for f in leaves(json.loads(line.removeprefix("data: ")))}
            if heard == 2:
                return fields
    return fields


def columns(path: Path, kind: str) -> Shown:
    """Columns of a store, and the keys of its notes."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    tables = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
    ]
    shown = {
        (f"{kind} store", f"{table}.{row[1]}")
        for table in tables
        for row in connection.execute(f"PRAGMA table_info({table})")
    }
    shown |= {
        (f"{kind} store", f"meta: {key}") for (key,) in connection.execute("SELECT key FROM meta")
    }
    connection.close()
    return shown


@contextmanager
def visited(folder: Path, model: Model) -> Iterator[tuple[httpx.Client, Routes]]:
    """A federation of one that has sent something after sixty visits."""
    app, runner = local_app(local_settings(folder, model=model))
    rng = np.random.default_rng(0)
    with serving(app) as client:
        wait_for(lambda: client.get("/healthz").json()["status"] == "ok")
        for k in range(60):
            visit(client, k, rng)
        (channel,) = runner.node.channels
        wait_for(lambda: 0 < channel.sent == channel.confirmed)
        yield client, app


@pytest.mark.parametrize("policy", POLICIES)
def test_a_local_server_shows_nothing_without_a_row(tmp_path: Path, policy: str) -> None:
    with visited(tmp_path, model_of(policy)) as (client, app):
        shown = ask_all(client, app, "local")
    shown |= columns(tmp_path / "local.db", "local") | columns(tmp_path / "local.db.global", "global")
    assert without_row(shown) == set(), ASK


@pytest.mark.parametrize("policy", POLICIES)
def test_a_global_server_shows_nothing_without_a_row(tmp_path: Path, policy: str) -> None:
    """The store that a federation of one leaves behind, under the global server's own routes."""
    model = model_of(policy)
    with visited(tmp_path, model):
        pass  # all that is wanted of it is its store
    settings = GlobalSettings(
        model=model, store=str(tmp_path / "local.db.global"), servers=["local"], http=HTTP
    )
    with_keys(settings.store)
    monitor, node, board = Monitor("global"), global_node(settings), dict[str, DirectWire]()
    DirectWire("local", board)
    runner = Runner(node, DirectWire(GLOBAL, board), monitor)
    service = GlobalService(settings, node, runner, monitor)

    @asynccontextmanager
    async def lifespan(app: Router) -> AsyncIterator[None]:
        async with running(runner, service.recorder.run()):
            yield

    app = service.app(lifespan)
    with serving(app) as client:
        shown = ask_all(client, app, "global")
    assert without_row(shown) == set(), ASK


def message_fields() -> Shown:
    kinds: set[type[msgspec.Struct]] = set()
    for module in (paper, rounds, streams, user_streams, slots, frames):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not Message:
                kinds.add(value)
    return {
        ("message", f"{kind.__name__}.{field}")
        for kind in kinds
        for field in kind.__struct_fields__
        if not kind.__name__.startswith("_")
    }


def test_every_field_of_a_message_has_a_row() -> None:
    assert without_row(message_fields()) == set(), ASK


def test_every_fact_of_a_log_line_has_a_row() -> None:
    """The log is written by `Monitor.event`; its facts are named where it is called."""
    shown: Shown = set()
    for file in sorted(Path(fclub.service.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            by_hand = isinstance(node.func.value, ast.Name) and node.func.value.id in ("log", "logging")
            assert not by_hand or file.name in ("monitoring.py", "access.py"), file
            if node.func.attr != "event":
                continue
            first = node.args[0] if node.args else None
            kind = str(first.value) if isinstance(first, ast.Constant) else "*"
            shown |= {("log", f"{kind}: {fact.arg}") for fact in node.keywords if fact.arg != "level"}
            shown.add(("log", kind))
    assert without_row(shown) == set(), ASK


def test_every_fact_of_a_request_in_the_log_has_a_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of all requests if the settings say so, of refused ones in any case."""
    http = msgspec.structs.replace(HTTP, access_log=True)
    with (
        caplog.at_level("INFO", logger="fclub.access"),
        serving(local_app(local_settings(tmp_path, http=http))[0]) as client,
    ):
        visit(client, 0, np.random.default_rng(0))
        assert client.get("/v1/clusters").status_code == 403
        assert client.get("/v1/users/ann", headers={"Authorization": ""}).status_code == 401
    lines: list[Any] = [record for record in caplog.records if record.name == "fclub.access"]
    assert len(lines) > 3
    shown = {("access log", f"{line.getMessage()}: {fact}") for line in lines for fact in line.facts}
    assert without_row(shown) == set(), ASK
    assert not any("ann" in str(line.facts) or "u0" in str(line.facts) for line in lines)


NUMBER = re.compile(r"\d+(?:\.\d+)?")
BAD: list[tuple[str, str, Any]] = [
    ("POST", "/v1/recommend", {"user": "u1", "items": []}),
    ("POST", "/v1/recommend", {"user": "u1", "items": [{"id": "i", "features": [0.5]}]}),
    ("POST", "/v1/recommend", {"user": "u1", "items": [{"id": "i", "features": [7, 0, 0, 0]}]}),
    ("POST", "/v1/recommend", {"user": "u1", "items": ["a"] * 21}),
    ("POST", "/v1/recommend", {"user": "u1" * 99, "items": ["a"]}),
    ("POST", "/v1/feedback", {"decision": "77", "reward": 1.0}),
    ("POST", "/v1/feedback", {"decision": "77", "reward": 5}),
    ("POST", "/v1/observations", {"observations": [{"id": "p", "user": "u1", "reward": 1.0}]}),
    ("PUT", "/v1/items", {"items": [{"id": "i", "features": [0.5]}]}),
    ("GET", "/v1/users/nobody", None),
    ("DELETE", "/v1/items/none", None),
]


def test_an_error_tells_no_number_but_those_of_the_request_and_of_the_settings(
    client: httpx.Client,
) -> None:
    rng = np.random.default_rng(0)
    shown = [visit(client, k, rng) for k in range(23)]
    again = {"decision": shown[0]["decision"], "reward": 0.123}
    public = {*map(str, msgspec.to_builtins(HTTP).values()), *map(str, (DIM, 0, 1, 1.0, 128, 256, 64))}
    for method, path, body in [*BAD, ("POST", "/v1/feedback", again)]:
        answer = client.request(method, path, json=body, headers=ADMIN)
        text = json.dumps(answer.json()) if answer.is_success else answer.json()["error"]
        said = set(NUMBER.findall(text)) - {"200", "422"}
        asked = set(NUMBER.findall(json.dumps(body))) | set(NUMBER.findall(path))
        assert said <= asked | public, (path, text)
    assert set(NUMBER.findall(client.get("/v1/nowhere").text)) == set()


def test_every_route_is_shown_to_whom_the_table_says() -> None:
    for where, _, who in rows():
        if where.startswith(("local ", "global ")) and "/" in where:
            assert who == (needed(*where.split()[1:]) or "anybody"), where
