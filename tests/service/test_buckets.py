"""The header by which a proxy finds a user's server, at the server and in the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from fclub import AsyncClient, Client
from fclub.buckets import HEADER, bucket_of_decision, bucket_of_user
from fclub.client import Observation, Recommendation, Several
from fclub.errors import InvalidInput, RequestFailed
from fclub.service.nodes.local_node import LocalNode
from fclub.service.serve import local_app
from fclub.service.settings import Model

from .conftest import DIM, ITEMS, TOKEN, local_settings, serving

OFFER: dict[str, list[float]] = {str(k): [0.1 * k] + [0.0] * (DIM - 1) for k in range(3)}
USERS = [f"user-{k}" for k in range(10)]


class Running(NamedTuple):
    client: httpx.Client
    node: LocalNode

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    def known(self) -> dict[str, Any]:
        """All that is stored of each user."""
        return {
            name: self.client.get(f"/v1/users/{name}/data").json() for name in [*self.node.users.rows]
        }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """Choices are mixed with uniform ones, which make decisions in another way."""
    app, runner = local_app(local_settings(tmp_path, model=Model(dim=DIM, uniform=0.5)))
    with serving(app) as client:
        assert isinstance(runner.node, LocalNode)
        yield Running(client, runner.node)


@pytest.mark.parametrize("user", ["ann", "ü", "a/b c", "0", "x" * 128])
def test_a_bucket_is_the_first_byte_of_the_hash(user: str) -> None:
    digest = int(sha256(user.encode()).hexdigest(), 16)
    assert bucket_of_user(user) == f"{digest >> 248:02x}"


def test_what_is_no_decision_has_no_bucket() -> None:
    assert [bucket_of_decision(text) for text in ("00F7", "7", "", "0g", "ßü")] == [
        "f7",
        "",
        "",
        "",
        "",
    ]


def test_text_that_is_not_unicode_is_refused_as_before(server: Running) -> None:
    with Client(server.url, TOKEN) as shop, pytest.raises(InvalidInput, match="cannot be asked this"):
        shop.recommend("\ud800", OFFER)


def test_a_decision_ends_with_the_bucket_of_its_user(server: Running) -> None:
    with Client(server.url, TOKEN) as shop:
        shop.put_items(OFFER)
        for user in USERS:
            several = shop.recommend_several(user, 3, exclude_seen=False)
            assert len(several) == 3
            every = shop.recommend(user, exclude_seen=False)
            for one in (shop.recommend(user, OFFER), every, *several):
                assert bucket_of_decision(one.decision) == bucket_of_user(user)
                assert shop.feedback(one.decision, 1.0)


def asked(user: str, decision: str) -> dict[str, tuple[str, str, Any]]:
    """Every route that is about users, as requests about this one."""
    visit = {"user": user, "items": ITEMS}
    reward = {"decision": decision, "reward": 1.0}
    past = {"id": "p", "user": user, "reward": 1.0, "features": ITEMS[0]["features"]}
    return {
        "recommend": ("POST", "/v1/recommend", visit),
        "several": ("POST", "/v1/recommend", visit | {"count": 2}),
        "feedback": ("POST", "/v1/feedback", reward),
        "recommend batch": ("POST", "/v1/recommend/batch", {"requests": [visit]}),
        "feedback batch": ("POST", "/v1/feedback/batch", {"requests": [reward]}),
        "observations": ("POST", "/v1/observations", {"observations": [past]}),
        "user": ("GET", f"/v1/users/{user}", None),
        "data": ("GET", f"/v1/users/{user}/data", None),
        "forget": ("DELETE", f"/v1/users/{user}", None),
    }


@pytest.mark.parametrize("route", asked("", ""))
def test_a_header_of_another_user_is_refused_and_changes_nothing(server: Running, route: str) -> None:
    client = server.client
    shown = client.post("/v1/recommend", json={"user": "ann", "items": ITEMS}).json()
    method, path, body = asked("ann", shown["decision"])[route]
    before = server.known()
    for wrong in (bucket_of_user("bob"), bucket_of_user("ann").upper() + "0", "x" * 2000):
        answer = client.request(method, path, json=body, headers={HEADER: wrong})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(
            f"{HEADER} is {wrong[:16]!r}, but the request is about"
        )
    assert server.known() == before
    assert client.request(method, path, json=body, headers={HEADER: bucket_of_user("ann")}).is_success
    assert client.get("/metrics", headers={HEADER: "no user"}).is_success


def test_a_long_body_is_compared_too(server: Running) -> None:
    """It is answered by a task, unlike short ones."""
    body = {"user": "ann", "items": ITEMS, "exclude": ["x" * 200] * 60}
    for user, status in (("ann", 200), ("bob", 400)):
        answer = server.client.post("/v1/recommend", json=body, headers={HEADER: bucket_of_user(user)})
        assert answer.status_code == status


def test_one_entry_of_another_bucket_refuses_the_batch(server: Running) -> None:
    visits = [{"user": user, "items": ITEMS} for user in ("ann", "ann", "bob")]
    headers = {HEADER: bucket_of_user("ann")}
    before = server.known()
    answer = server.client.post("/v1/recommend/batch", json={"requests": visits}, headers=headers)
    assert (answer.status_code, server.known()) == (400, before)


class Wire(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Remembers requests; those of one bucket meet a proxy whose server is down."""

    def __init__(self, down: str = "") -> None:
        self.down, self.sent = down, list[tuple[str, str, Any]]()
        self._wire, self._async_wire = httpx.HTTPTransport(), httpx.AsyncHTTPTransport()

    def _note(self, request: httpx.Request) -> bool:
        bucket = request.headers.get(HEADER, "")
        self.sent.append((request.url.path, bucket, json.loads(request.content or b"null")))
        return bool(self.down) and bucket == self.down

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._note(request):
            return httpx.Response(503, json={"error": "down"})
        return self._wire.handle_request(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._note(request):
            return httpx.Response(503, json={"error": "down"})
        return await self._async_wire.handle_async_request(request)

    def close(self) -> None:
        self._wire.close()

    async def aclose(self) -> None:
        await self._async_wire.aclose()


def test_a_client_sends_the_header_with_all_that_is_about_one_user(server: Running) -> None:
    wire = Wire()
    with Client(server.url, TOKEN, transport=wire) as shop:
        shown = shop.recommend("ann", OFFER)
        shop.feedback(shown.decision, 1.0)
        shop.recommend_several("ann", 2, OFFER)
        shop.user_data("ann")
        shop.recommend_batch([("ann", OFFER), ("bob", OFFER)])
        shop.put_items(OFFER)
        shop.forget("ann")
    ann = bucket_of_user("ann")
    assert [bucket for _, bucket, _ in wire.sent] == [ann, ann, ann, ann, "", "", ann]


def test_split_batches_have_one_bucket_each_and_results_in_order(server: Running) -> None:
    users = [*USERS, *reversed(USERS)]
    wire = Wire()
    with Client(server.url, TOKEN, split=True, transport=wire) as shop:
        shown = shop.recommend_batch((user, OFFER) for user in users)
        assert [
            bucket_of_decision(one.decision) for one in shown if isinstance(one, Recommendation)
        ] == ([bucket_of_user(user) for user in users])
        rewards = {one.decision: 1.0 for one in shown if isinstance(one, Recommendation)}
        assert shop.feedback_batch(rewards) == dict.fromkeys(rewards, True)
        past = [Observation(f"p{k}", u, 1.0, features=[0.0] * DIM) for k, u in enumerate(users)]
        assert shop.observe([*past, past[3]]) == [True] * len(users) + [False]
        assert shop.recommend_batch([]) == []
    for path, bucket, body in wire.sent:
        (entries,) = body.values()
        if path == "/v1/feedback/batch":
            assert {bucket_of_decision(entry["decision"]) for entry in entries} == {bucket}
        else:
            assert {bucket_of_user(entry["user"]) for entry in entries} == {bucket}
    assert len(wire.sent) == 3 * len({bucket_of_user(user) for user in users})


def test_a_server_that_is_down_is_the_result_of_its_users_only(server: Running) -> None:
    down = bucket_of_user(USERS[0])
    expected = [503 if bucket_of_user(user) == down else 200 for user in USERS]
    visits = [(user, OFFER) for user in USERS]

    def statuses(shown: list[Recommendation | Several | RequestFailed]) -> list[int]:
        return [one.status if isinstance(one, RequestFailed) else 200 for one in shown]

    async def play() -> None:
        given: dict[str, Any] = {"retries": 0, "split": True, "transport": Wire(down)}
        async with AsyncClient(server.url, TOKEN, **given) as shop:
            assert statuses(await shop.recommend_batch(visits)) == expected
            with pytest.raises(RequestFailed, match="503"):
                await shop.recommend(USERS[0], OFFER)

    with Client(server.url, TOKEN, retries=0, split=True, transport=Wire(down)) as shop:
        assert statuses(shop.recommend_batch(visits)) == expected
        with pytest.raises(RequestFailed, match="503"):
            shop.recommend(USERS[0], OFFER)
    asyncio.run(play())
