"""What is refused is answered in JSON, counted and logged; nothing in the log names a user."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from fclub.service.http import access
from fclub.service.http.access import Access
from fclub.service.serve import local_app

from .conftest import HTTP, local_settings, offer, serving


def facts(records: list[logging.LogRecord]) -> list[dict[str, Any]]:
    return [vars(one)["facts"] for one in records if one.name == "fclub.access"]


def count(client: httpx.Client, route: str, status: int) -> bool:
    line = f'fclub_http_requests_total{{route="{route}",status="{status}"}} 1.0'
    return line in client.get("/metrics").text


def test_an_unknown_route_is_answered_in_json_and_counted(client: httpx.Client) -> None:
    answer = client.get("/v1/recommendations")
    assert (answer.status_code, answer.json()) == (404, {"error": "there is no such route"})
    assert count(client, "unknown", 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/recommend", "POST"),
        ("PATCH", "/v1/users/ann", "DELETE, GET, HEAD"),
        ("POST", "/v1/items", "GET, HEAD, PUT"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    client: httpx.Client, method: str, path: str, allowed: str
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert allowed in answer.json()["error"]
    assert count(client, "unknown", 405)


@pytest.mark.parametrize(
    ("method", "path", "body", "place"),
    [
        ("POST", "/v1/recommend", {"user": "a", "itmes": []}, "`itmes`"),
        (
            "POST",
            "/v1/recommend",
            {"user": "a", "items": [{"id": "i", "features": [0.0] * 4, "price": 3}]},
            "`price`",
        ),
        ("POST", "/v1/recommend/batch", {"requests": [{"user": "a", "n": 1}]}, "`n`"),
        ("POST", "/v1/feedback", {"decision": "00", "reward": 1.0, "at": 5}, "`at`"),
        ("POST", "/v1/feedback/batch", {"requests": [], "all": True}, "`all`"),
        ("POST", "/v1/observations", {"observations": [], "from": "x"}, "`from`"),
        ("PUT", "/v1/items", {"replace": True, "items": []}, "`replace`"),
        ("POST", "/v1/visitors", {"visits": 1, "policies": {}, "who": "me"}, "`who`"),
    ],
)
def test_an_unknown_field_is_refused_by_its_name(
    client: httpx.Client, method: str, path: str, body: dict[str, Any], place: str
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 422
    assert f"unknown field {place}" in answer.json()["error"]


def test_refused_requests_are_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    http = msgspec.structs.replace(HTTP, max_requests_per_second=5)
    with serving(local_app(local_settings(tmp_path, http=http))[0]) as client:
        for _ in range(3):
            answer = client.get("/v1/users/ann", headers={"Authorization": "Bearer wrong"})
            assert answer.status_code == 401
        assert client.get("/v1/live").status_code == 403
        assert client.post("/v1/recommend", content=" " * 30_000).status_code == 413
        codes = [client.get("/v1/users/ann").status_code for _ in range(20)]
        assert 429 in codes
    seen = facts(caplog.records)
    assert [(one["status"], one["route"]) for one in seen] == [
        (401, "/v1/users/{user:path}"),
        (403, "/v1/live"),
        (413, "/v1/recommend"),
        (429, "/v1/users/{user:path}"),
    ]
    assert all(one["client"] == "127.0.0.1" for one in seen)
    assert "ann" not in caplog.text


def test_refusals_that_go_on_are_told_again_after_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, scope = Access(all_requests=False), {"method": "GET", "client": ("10.0.0.1", 5)}
    log.answered(scope, "/v1/link", 200, 0.1)
    for _ in range(4):
        log.answered(scope, "/v1/link", 401, 0.1)
    assert len(facts(caplog.records)) == 1
    monkeypatch.setattr(access, "TELL_AGAIN_SECONDS", 0.0)
    log.answered(scope, "/v1/link", 401, 0.1)
    assert facts(caplog.records)[-1]["unmentioned"] == 3


def test_an_attacker_does_not_fill_the_memory() -> None:
    log = Access(all_requests=False)
    for number in range(2 * access.REMEMBERED):
        log.answered({"method": "GET", "client": (str(number), 5)}, "/v1/link", 401, 0.1)
    assert len(log._told) == access.REMEMBERED


def test_every_request_is_logged_if_that_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    http = msgspec.structs.replace(HTTP, access_log=True)
    with serving(local_app(local_settings(tmp_path, http=http))[0]) as client:
        client.post("/v1/recommend", json={"user": "ann", "items": offer(np.random.default_rng(0))})
        client.get("/v1/users/ann")
        client.get("/v1/users/bob")
        client.get("/nowhere/ann")
    seen = [(one["method"], one["route"], one["status"]) for one in facts(caplog.records)]
    assert seen == [
        ("POST", "/v1/recommend", 200),
        ("GET", "/v1/users/{user:path}", 200),
        ("GET", "/v1/users/{user:path}", 404),
        ("GET", "unknown", 404),
    ]
    lines = [str(vars(one)) for one in caplog.records if one.name == "fclub.access"]
    assert not any("ann" in line or "bob" in line for line in lines)
