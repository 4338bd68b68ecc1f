"""The routes of the global server, with a real broker behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.routing import Route
from tests.parts import is_a

from fclub.errors import Forbidden, InvalidSetting
from fclub.service.http import api, global_api
from fclub.service.http.gate import status_for
from fclub.service.link.broker import LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.serve import global_app, local_app
from fclub.service.settings import GlobalSettings, Model, Nats

from .conftest import (
    ADMIN_TOKEN,
    DIM,
    HTTP,
    local_settings,
    serving,
    wait_for,
    with_keys,
)

OPEN = {"/healthz", "/readyz", "/openapi.json", "/", "/static/{name}"}
ROUTES = [
    ("GET", "/v1/live"),
    ("POST", "/v1/visitors"),
    ("GET", "/v1/clusters"),
    ("GET", "/v1/servers"),
    ("GET", "/v1/slots"),
    ("POST", "/v1/servers/s0/release"),
    ("GET", "/metrics"),
]
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


def settings(path: Path, nats: Nats) -> GlobalSettings:
    model, store = Model(policy="cdp-fclub-dc", dim=DIM), str(path / "global.db")
    return GlobalSettings(
        model=model,
        store=with_keys(store),
        servers=["s0"],
        signers={"s0": ["ab" * 32]},
        http=HTTP,
        nats=nats,
    )


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[httpx.Client]:
    broker = LocalBroker(tmp_path / "nats", {"s0": "one", GLOBAL: "two"})
    broker.start()
    nats = Nats(url=broker.url, user=GLOBAL, password="two")
    with serving(global_app(settings(tmp_path, nats))[0]) as client:
        yield client
    broker.stop()


@pytest.mark.parametrize(
    "header", ["", "Bearer wrong", "Basic YTpi", "application-token", "Bearer token-of-s0"]
)
def test_every_route_needs_a_token(hub: httpx.Client, header: str) -> None:
    for method, path in ROUTES:
        assert hub.request(method, path, headers={"Authorization": header}).status_code == 401


def test_results_of_visitors_are_taken_where_visitors_are_simulated(tmp_path: Path) -> None:
    real = msgspec.structs.replace(HTTP, simulated=False)
    totals = {"visits": 1, "policies": {}}
    with serving(local_app(local_settings(tmp_path, http=real))[0]) as client:
        refused = client.post("/v1/visitors", json=totals, headers=ADMIN)
        assert refused.status_code == 403
        assert "simulate" in refused.json()["error"]


def test_only_an_admin_ends_a_quarantine(hub: httpx.Client) -> None:
    assert hub.post("/v1/servers/s0/release").status_code == 403
    assert hub.post("/v1/servers/s0/release", headers=ADMIN).json()["quarantined"] is False
    assert hub.post("/v1/servers/nobody/release", headers=ADMIN).status_code == 404


def test_health_tells_that_the_broker_is_gone(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path / "nats", {"s0": "one", GLOBAL: "two"})
    broker.start()
    nats = Nats(url=broker.url, user=GLOBAL, password="two")
    with serving(global_app(settings(tmp_path, nats))[0]) as client:
        wait_for(lambda: client.get("/healthz").json()["status"] == "ok")
        broker.kill()
        wait_for(lambda: client.get("/healthz").json()["status"] == "degraded")
        assert "the broker is not reached" in client.get("/healthz").json()["reason"]


def test_the_routes_tell_what_the_server_knows(hub: httpx.Client) -> None:
    servers = hub.get("/v1/servers").json()
    assert servers["s0"]["sent"] == 0, "nothing is announced to a server that has not said hello"
    assert hub.get("/v1/clusters", headers=ADMIN).json() == []
    wait_for(lambda: hub.get("/healthz").json()["status"] == "ok")
    text = hub.get("/metrics").text
    assert 'fclub_outbox_frames{server="s0"} 0.0' in text
    assert "fclub_phase 1.0" in text


def test_the_description_for_machines_tells_what_the_routes_answer(hub: httpx.Client) -> None:
    described = hub.get("/openapi.json", headers={"Authorization": ""}).json()
    release = "/v1/servers/{server}/release"
    assert set(described["paths"]) == {"/v1/clusters", "/v1/servers", "/v1/slots", release}
    assert hub.get("/v1/slots").json() == []
    server = described["components"]["schemas"]["ServerView"]["properties"]
    assert hub.get("/v1/servers").json()["s0"].keys() == server.keys()
    assert hub.get("/v1/server").json() == {"error": "there is no such route"}
    answer = hub.get("/v1/servers/s0/release")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_generators_of_clients_can_read_the_descriptions() -> None:
    """Every operation has a name of its own, and no list forbids its entries."""
    for described in (api.openapi(2), global_api.openapi()):
        operations = [one for path in described["paths"].values() for one in path.values()]
        names = [one["operationId"] for one in operations]
        assert len(set(names)) == len(names)
        assert all(name.isidentifier() for name in names)
        text = msgspec.json.encode(described)
        assert b"prefixItems" not in text
        assert b'"items":false' not in text
    several = api.openapi(2)["components"]["schemas"]["Several"]["properties"]["reward_range"]
    assert several == {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "number"}}


def test_the_descriptions_of_bodies_are_paragraphs() -> None:
    """Markdown takes a line that begins with four spaces for code."""
    for described in (api.openapi(2), global_api.openapi()):
        texts = [
            schema.get("description", "") for schema in described["components"]["schemas"].values()
        ]
        lines = [line for text in texts for line in text.splitlines()]
        assert "" in lines, "some have several paragraphs"
        assert [line for line in lines if line.startswith(" ")] == []


def test_an_answer_to_who_is_no_administrator_is_described() -> None:
    answers = api.openapi(2)["paths"]["/v1/clusters"]["get"]["responses"]
    assert str(status_for(Forbidden)) in answers


def test_the_list_of_protected_routes_is_complete(tmp_path: Path) -> None:
    app, _ = global_app(settings(tmp_path, Nats(url="nats://127.0.0.1:1")))
    known = {path.replace("/s0/", "/{server}/") for _, path in ROUTES} | OPEN
    assert {is_a(Route, route).path for route in app.routes} == known


def test_the_global_server_needs_a_broker(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"nats\.url"):
        global_app(settings(tmp_path, Nats()))
