"""The routes of a local server, as an application sees them."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
from starlette.routing import Route
from tests.parts import is_a

from fclub.service.http.keys import SCOPES, KeyFile
from fclub.service.serve import local_app
from fclub.service.settings import Http

from .conftest import ADMIN_TOKEN, DIM, HTTP, TOKEN, local_settings, offer, serving, wait_for


def recommend(client: httpx.Client, user: str = "ann", seed: int = 0) -> dict[str, object]:
    answer = client.post(
        "/v1/recommend", json={"user": user, "items": offer(np.random.default_rng(seed))}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_reward_is_counted_once(client: httpx.Client) -> None:
    decision = recommend(client)
    body = {"decision": decision["decision"], "reward": 1.0}
    assert client.post("/v1/feedback", json=body).json() == {"counted": True}
    again = client.post("/v1/feedback", json=body)
    assert (again.status_code, again.json()) == (200, {"counted": False})
    assert client.post("/v1/feedback", json=body | {"reward": 0.0}).status_code == 409
    assert client.get("/v1/users/ann").json()["observations"] == 1


@pytest.mark.parametrize("decision", ["", "zz", "00" * 16])
def test_an_unknown_decision_is_not_found(client: httpx.Client, decision: str) -> None:
    assert client.post("/v1/feedback", json={"decision": decision, "reward": 0.5}).status_code == 404


def test_a_late_reward_survives_a_restart(tmp_path: Path) -> None:
    settings = local_settings(tmp_path)
    with serving(local_app(settings)[0]) as client:
        decision = recommend(client)["decision"]
    with serving(local_app(settings)[0]) as client:
        body = {"decision": decision, "reward": 1.0}
        assert client.post("/v1/feedback", json=body).json() == {"counted": True}
    with serving(local_app(settings)[0]) as client:
        assert client.post("/v1/feedback", json=body).json() == {"counted": False}
        assert client.get("/v1/users/ann").json()["observations"] == 1


def nothing_is_known_of(client: httpx.Client, user: str) -> bool:
    """A refused request may have made the user known, as all arrivals do, but nothing else."""
    answer = client.get(f"/v1/users/{user}")
    return answer.status_code == 404 or answer.json()["observations"] == 0


def test_batches_answer_entry_by_entry(client: httpx.Client) -> None:
    items = offer(np.random.default_rng(0))
    wrong = [{"id": "x", "features": [0.1] * (DIM + 1)}]
    requests = [
        {"user": "a", "items": items},
        {"user": "b", "items": wrong},
        {"user": "c", "items": items},
    ]
    results = client.post("/v1/recommend/batch", json={"requests": requests}).json()["results"]
    assert [entry["status"] for entry in results] == [200, 422, 200]
    rewards = [{"decision": results[0]["result"]["decision"], "reward": 1.0}] * 2
    rewards += [rewards[0] | {"reward": 0.0}, {"decision": "ff", "reward": 1.0}]
    results = client.post("/v1/feedback/batch", json={"requests": rewards}).json()["results"]
    assert [entry["status"] for entry in results] == [200, 200, 409, 404]
    assert nothing_is_known_of(client, "b")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("[]", 422),
        ('{"user": "", "items": []}', 422),
        ('{"user": "a", "items": []}', 422),
        ('{"user": "a", "items": [{"id": "i", "features": [1e999, 0, 0, 0]}]}', 422),
        ('{"user": "a", "items": [{"id": "i", "features": [2.0, 0, 0, 0]}]}', 422),
        ('{"user": "a", "items": [{"id": "i", "features": [0.5]}]}', 422),
        ('{"user": "' + "é" * 70 + '", "items": [{"id": "i", "features": [1, 0, 0, 0]}]}', 422),
        (
            '{"user": "a", "items": ['
            + ", ".join(['{"id": "i", "features": [1, 0, 0, 0]}'] * 21)
            + "]}",
            413,
        ),
        (" " * (HTTP.max_body_bytes + 1), 413),
    ],
)
def test_bad_bodies_are_refused_and_teach_nothing(client: httpx.Client, body: str, status: int) -> None:
    answer = client.post("/v1/recommend", content=body)
    assert answer.status_code == status
    assert "error" in answer.json() or status == 413
    assert nothing_is_known_of(client, "a")


def test_too_many_requests(tmp_path: Path) -> None:
    http = msgspec.structs.replace(HTTP, max_requests_per_second=3)
    with serving(local_app(local_settings(tmp_path, http=http))[0]) as client:
        words = ["Bearer", "bearer", "BEARER", "bEARER", "beaReR"] * 2
        headers = [{"Authorization": f"{word} {TOKEN}"} for word in words]
        codes = [client.get("/v1/link", headers=header).status_code for header in headers]
    assert codes[:3] == [200, 200, 200]
    assert 429 in codes


ROUTES = [
    ("POST", "/v1/recommend"),
    ("POST", "/v1/feedback"),
    ("POST", "/v1/recommend/batch"),
    ("POST", "/v1/feedback/batch"),
    ("POST", "/v1/observations"),
    ("PUT", "/v1/items"),
    ("GET", "/v1/items"),
    ("GET", "/v1/items/one"),
    ("GET", "/v1/items/one/similar"),
    ("GET", "/v1/items/one/liked"),
    ("GET", "/v1/popular"),
    ("DELETE", "/v1/items/one"),
    ("GET", "/v1/clusters"),
    ("GET", "/v1/clusters/liked"),
    ("GET", "/v1/users/ann"),
    ("GET", "/v1/users/ann/preview"),
    ("GET", "/v1/users/ann/data"),
    ("DELETE", "/v1/users/ann"),
    ("GET", "/v1/privacy"),
    ("GET", "/v1/link"),
    ("GET", "/metrics"),
    ("GET", "/v1/live"),
    ("POST", "/v1/visitors"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic YTpi", "application-token"])
def test_every_route_needs_a_token(client: httpx.Client, method: str, path: str, header: str) -> None:
    answer = client.request(method, path, headers={"Authorization": header})
    assert answer.status_code == 401


def test_the_token_of_one_server_opens_no_other(tmp_path: Path) -> None:
    """South's token on every route of north, which knows its own only."""
    store, http = tmp_path / "south.db", Http(keys=str(tmp_path / "south.keys"))
    KeyFile(tmp_path / "south.keys").add("shop", SCOPES, token="south-token")
    south = local_settings(tmp_path, name="south", store=str(store), http=http)
    theirs = {"Authorization": "Bearer south-token"}
    with (
        serving(local_app(local_settings(tmp_path))[0]) as north,
        serving(local_app(south)[0]) as other,
    ):
        for method, path in ROUTES:
            assert north.request(method, path, headers=theirs).status_code == 401
        assert other.get("/v1/link", headers=theirs).status_code == 200
        assert other.get("/v1/link").status_code == 401
        assert north.get("/v1/link").status_code == 200


def test_a_refused_request_does_not_open_the_door_for_the_next(client: httpx.Client) -> None:
    """What a guard remembers are headers that have proved themselves, and nothing else."""
    for _ in range(3):
        for header in ("Bearer wrong", "Bearer", f"Bearer  {TOKEN}", f"Bearer {TOKEN[:-1]}"):
            assert client.get("/v1/link", headers={"Authorization": header}).status_code == 401
        assert client.get("/v1/link").status_code == 200
        assert client.get("/v1/link", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


def test_the_list_of_protected_routes_is_complete(tmp_path: Path) -> None:
    open_routes = {"/healthz", "/readyz", "/openapi.json", "/", "/static/{name}"}
    known = {
        path.replace("ann", "{user:path}").replace("one", "{item:path}") for _, path in ROUTES
    } | open_routes
    assert {is_a(Route, route).path for route in local_app(local_settings(tmp_path))[0].routes} == known


def test_observability(client: httpx.Client) -> None:
    recommend(client)
    wait_for(lambda: client.get("/healthz").json()["status"] == "ok")
    assert client.get("/readyz").json() == {"ready": True, "connected": True}
    text = client.get("/metrics").text
    assert "fclub_users 1.0" in text
    assert 'fclub_http_requests_total{route="/v1/recommend",status="200"} 1.0' in text
    assert client.get("/v1/privacy").json()["claimed"] == {"epsilon": 1.0, "delta": 1e-5}
    assert "/v1/feedback" in client.get("/openapi.json").json()["paths"]
    admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    assert client.get("/v1/link", headers=admin).status_code == 200
    assert client.get("/v1/clusters", headers=admin).status_code == 200
    assert client.get("/v1/clusters").status_code == 403, "who shares a cluster follows from raw data"
