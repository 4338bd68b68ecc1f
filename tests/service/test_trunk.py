"""Requests that travel together are answered like those that come alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import uvloop

from fclub.service.http.gate import Endpoint, Routes
from fclub.service.http.trunk import Branch, Trunk
from fclub.service.monitoring import Monitor
from fclub.service.serve import local_app
from fclub.service.settings import LocalSettings

from .conftest import HEADERS, HTTP, ITEMS, TOKEN, Wire, local_settings

PATHS = ("/v1/recommend", "/v1/feedback")
BEARER = f"Bearer {TOKEN}".encode()


def body(**fields: Any) -> bytes:
    return json.dumps({"user": "ann", "items": ITEMS} | fields).encode()


ASKED: dict[str, tuple[str, bytes, bytes]] = {
    "ordinary": (PATHS[0], BEARER, body()),
    "catalogue": (PATHS[0], BEARER, body(items=None)),
    "several": (PATHS[0], BEARER, body(count=2)),
    "excluded": (PATHS[0], BEARER, body(exclude=["1", "2"], exclude_seen=False)),
    "all excluded": (PATHS[0], BEARER, body(exclude=["0", "1", "2"])),
    "no token": (PATHS[0], b"", body()),
    "other token": (PATHS[1], b"Bearer wrong", b"{}"),
    "not JSON": (PATHS[0], BEARER, b"{"),
    "no user": (PATHS[0], BEARER, b'{"items": []}'),
    "no items": (PATHS[0], BEARER, body(items=[])),
    "too many items": (PATHS[0], BEARER, body(items=[str(k) for k in range(50)])),
    "too long": (PATHS[0], BEARER, body() + b" " * HTTP.max_body_bytes),
    "unknown decision": (PATHS[1], BEARER, b'{"decision": "00", "reward": 1}'),
    "bad reward": (PATHS[1], BEARER, b'{"decision": "00", "reward": 7}'),
}


async def ask(trunk: Trunk, path: str, authorization: bytes, data: bytes) -> tuple[int, Any]:
    answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
    trunk.ask(path, authorization, data, lambda *told: answer.set_result(told))
    async with asyncio.timeout(60):
        status, found = await answer
    return status, json.loads(found)


@asynccontextmanager
async def joined(at_once: Any, folder: Path) -> AsyncIterator[tuple[Trunk, list[Branch]]]:
    """Both ends of a connection over a real socket."""
    loop, path, branches = asyncio.get_running_loop(), str(folder / "trunk"), list[Branch]()

    def branch() -> Branch:
        branches.append(Branch(at_once, Monitor("local"), set()))
        return branches[-1]

    server = await loop.create_unix_server(branch, path)
    _, trunk = await loop.create_unix_connection(Trunk, path)
    try:
        yield trunk, branches
    finally:
        trunk.transport.close()
        server.close()


@asynccontextmanager
async def running(settings: LocalSettings) -> AsyncIterator[Routes]:
    app, _ = local_app(settings)
    async with app.lifespan_context(app):
        yield app


def test_answers_are_those_of_requests_that_come_alone(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            running(local_settings(tmp_path)) as app,
            joined(app.at_once, tmp_path) as (trunk, _),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client,
        ):
            put = await client.put("/v1/items", json={"items": ITEMS}, headers=HEADERS)
            assert put.status_code == 200
            told = await asyncio.gather(*(ask(trunk, *asked) for asked in ASKED.values()))
            together = dict(zip(ASKED, told, strict=True))
            for name, (path, authorization, data) in ASKED.items():
                headers = {"Authorization": authorization.decode()}
                alone = await client.post(path, content=data, headers=headers)
                status, found = together[name]
                assert status == alone.status_code, name
                if status != 200:
                    assert found == alone.json(), name
            decision = together["ordinary"][1]["decision"]
            reward = json.dumps({"decision": decision, "reward": 1.0}).encode()
            assert await ask(trunk, PATHS[1], BEARER, reward) == (200, {"counted": True})
            assert await ask(trunk, PATHS[1], BEARER, reward) == (200, {"counted": False})
            data = (await client.get("/v1/users/ann/data", headers=HEADERS)).json()
            shown = [one["decision"] for one in data["decisions"]]
            assert decision in shown
            assert {one["decision"] for one in together["several"][1]["shown"]} < set(shown)

    uvloop.run(play())


def test_a_request_that_needs_a_task_is_admitted_once(tmp_path: Path) -> None:
    http = msgspec.structs.replace(HTTP, max_requests_per_second=2)

    async def play() -> None:
        async with (
            running(local_settings(tmp_path, http=http)) as app,
            joined(app.at_once, tmp_path) as (trunk, _),
        ):
            asked = [ask(trunk, *ASKED["several"]) for _ in range(3)]
            assert sorted([status for status, _ in await asyncio.gather(*asked)]) == [200, 200, 429]

    uvloop.run(play())


class Slow:
    """A route that answers when it is told to; it may fail at once, or as a task."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def answer_at_once(self, scope: Any, data: bytes, respond: Any) -> bool:
        if data == b"fault":
            raise RuntimeError("a fault")
        if data == b"later fault":
            return False
        self.waiting.append((respond, data))
        return True

    async def __call__(self, *_: Any) -> None:
        raise RuntimeError("a later fault")


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_comes_together_travels_together_and_in_any_pieces() -> None:
    async def play() -> None:
        trunk, there, back = Trunk(), Wire(), Wire()
        slow = Slow()
        branch = Branch({("POST", "/"): cast(Endpoint, slow)}, Monitor("local"), set())
        trunk.connection_made(cast(asyncio.Transport, there))
        branch.connection_made(cast(asyncio.Transport, back))
        told: list[tuple[int, bytes]] = []
        for number in range(5):
            trunk.ask("/", b"", b"%d" % number, lambda *answer: told.append(answer))
        await turns()
        (message,) = there.sent
        for byte in message + message[:7]:
            branch.data_received(bytes([byte]))
        assert [data for _, data in slow.waiting] == [b"0", b"1", b"2", b"3", b"4"]
        for respond, data in reversed(slow.waiting):
            respond(200, data)
        await turns()
        (answers,) = back.sent
        trunk.data_received(answers[:11])
        await turns()
        assert told == []
        trunk.data_received(answers[11:])
        await turns()
        assert told == [(200, b"%d" % number) for number in (4, 3, 2, 1, 0)]

    uvloop.run(play())


def test_faults_are_answers_and_disturb_nobody(tmp_path: Path) -> None:
    async def play() -> None:
        slow = Slow()
        async with joined({("POST", "/"): slow}, tmp_path) as (trunk, _):
            good = asyncio.create_task(ask(trunk, "/", b"", b"1"))
            asked = [("/", b"fault"), ("/", b"later fault"), ("/none", b"")]
            for path, data in asked:
                assert await ask(trunk, path, b"", data) == (500, {"error": "the server has failed"})
            ((respond, data),) = slow.waiting
            respond(200, data)
            assert await good == (200, 1)

    uvloop.run(play())


def test_who_fails_to_take_an_answer_keeps_it_from_nobody(tmp_path: Path) -> None:
    """Neither an answer that has come nor the refusal of one that will not."""

    def fail(status: int, data: bytes) -> None:
        raise RuntimeError("a fault")

    async def play() -> None:
        slow, faults = Slow(), list[Any]()
        asyncio.get_running_loop().set_exception_handler(lambda _, facts: faults.append(facts))
        async with joined({("POST", "/"): slow}, tmp_path) as (trunk, branches):
            for lost in (False, True):
                trunk.ask("/", b"", b"0", fail)
                good = asyncio.create_task(ask(trunk, "/", b"", b"1"))
                while len(slow.waiting) < 2:
                    await turns()
                if lost:
                    branches[0].transport.abort()
                for respond, data in slow.waiting:
                    respond(200, data)
                slow.waiting.clear()
                assert (await good)[0] == (503 if lost else 200)
        assert len(faults) == 2

    uvloop.run(play())


def test_a_lost_connection_is_a_refusal(tmp_path: Path) -> None:
    async def play() -> None:
        slow = Slow()
        async with joined({("POST", "/"): slow}, tmp_path) as (trunk, branches):
            lost = [asyncio.create_task(ask(trunk, "/", b"", b"lost")) for _ in range(3)]
            while len(slow.waiting) < len(lost):
                await turns()
            branches[0].transport.abort()
            assert [status for status, _ in await asyncio.gather(*lost)] == [503] * 3
            for respond, data in slow.waiting:
                respond(200, data)
            await turns()

    uvloop.run(play())
