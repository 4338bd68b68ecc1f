"""The router of a site before two local servers in this process, byte by byte."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import uvicorn
import uvloop

from fclub.service.http.joined import JoinedProtocol
from fclub.service.http.trunk import branches, trunk_of
from fclub.service.monitoring import Monitor
from fclub.service.serve import local_app
from fclub.service.shards.front import HEADER_BYTES, Front
from fclub.service.shards.homes import Homes
from fclub.service.shards.relay import Request, Server, Sink, answer_of
from fclub.service.shards.router import Router

from .conftest import HTTP, ITEMS, TOKEN, Wire, local_settings

USERS = [f"user-{k}" for k in range(12)]


class Client:
    """Says what it is told to, and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def say(self, path: str, value: object, close: bool = False) -> None:
        self.write(path, json.dumps(value).encode(), close)

    def write(self, path: str, body: bytes, close: bool = False) -> None:
        last = "Connection: close\r\n" if close else ""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAUTHORIZATION: Bearer {TOKEN}\r\n{last}"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def hear(self, body: bool = True) -> tuple[int, Any]:
        async with asyncio.timeout(60):
            head = await self._reader.readuntil(b"\r\n\r\n")
            self.closes = b"\r\nconnection: close\r\n" in head
            assert b"\r\ndate: " in head
            lines = head.decode().lower().split("\r\n")
            (length,) = [int(line[16:]) for line in lines if line.startswith("content-length: ")]
            found = json.loads(await self._reader.readexactly(length)) if body else None
            return int(lines[0].split()[1]), found

    async def ask(self, path: str, value: object) -> tuple[int, Any]:
        self.say(path, value)
        return await self.hear()

    async def recommend(self, user: str, **more: object) -> tuple[int, Any]:
        return await self.ask("/v1/recommend", {"user": user, "items": ITEMS} | more)

    async def ended(self) -> bool:
        async with asyncio.timeout(60):
            return await self._reader.read() == b""


@dataclass
class Site:
    router: Router
    connect: Callable[[], Awaitable[Client]]

    async def joined(self) -> None:
        """Return when both shards have connections for short requests."""
        async with asyncio.timeout(60):
            while None in [server.trunk() for server in self.router.shards]:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def shard(folder: Path, number: int, **http: Any) -> AsyncIterator[Server]:
    """An ordinary local server behind a socket."""
    (folder / str(number)).mkdir()
    limits = msgspec.structs.replace(HTTP, **http)
    app, _ = local_app(local_settings(folder / str(number), shard=number, http=limits))
    path = str(folder / f"{number}.socket")
    config = uvicorn.Config(
        app, http=JoinedProtocol, uds=path, lifespan="off", log_config=None, proxy_headers=False
    )

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(trunk_of(path))
    async with app.lifespan_context(app):
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        async with branches(app, listener):
            while not server.started:
                await asyncio.sleep(0.001)
            yield Server(f"shard-{number}", path)
            server.should_exit = True
        await serving


@asynccontextmanager
async def site(folder: Path, counts: list[int], **http: Any) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        shards = [await stack.enter_async_context(shard(folder, k, **http)) for k in (0, 1)]
        router = Router(Homes(counts), shards, Monitor("site"))
        loop = asyncio.get_running_loop()
        front = await loop.create_server(lambda: Front(router, HTTP.max_body_bytes), "127.0.0.1", 0)
        port, clients = front.sockets[0].getsockname()[1], list[Client]()

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
            return clients[-1]

        yield Site(router, connect)
        for client in clients:
            client.writer.close()
        front.close()


@pytest.mark.parametrize("counts", [[2], [1, 2]])
def test_requests_in_a_row_are_answered_in_their_order(tmp_path: Path, counts: list[int]) -> None:
    """From shards that answer at their own pace, at once or in a task, found or not."""

    async def play() -> None:
        async with site(tmp_path, counts) as there:
            await there.joined()
            client = await there.connect()
            for user in USERS:
                client.say("/v1/recommend", {"user": user, "items": ITEMS})
                client.say("/v1/recommend", {"user": user, "items": ITEMS, "count": 2})
                client.say("/v1/feedback", {"decision": "0" * 32, "reward": 1.0})
            decisions = []
            for _ in USERS:
                (first, one), (second, two), (third, unknown) = [await client.hear() for _ in range(3)]
                assert (first, second, third) == (200, 200, 404)
                assert len(two["shown"]) == 2
                assert "error" in unknown
                decisions.append(one["decision"])
            assert {decision[-2:] for decision in decisions} == {"00", "01"}
            for decision in decisions:
                told = await client.ask("/v1/feedback", {"decision": decision, "reward": 1.0})
                assert told == (200, {"counted": True})

    uvloop.run(play())


def test_a_decision_of_before_the_shards_is_looked_for_at_all_of_them(tmp_path: Path) -> None:
    """Its id may end like those of another shard."""

    async def play() -> None:
        async with site(tmp_path, [1, 2]) as there:
            await there.joined()
            client = await there.connect()
            _, shown = await client.recommend("ann")
            there.router.shards = there.router.shards[::-1]
            told = {"decision": shown["decision"], "reward": 1.0}
            assert await client.ask("/v1/feedback", told) == (200, {"counted": True})

    uvloop.run(play())


def test_a_shard_that_is_lost_is_a_refusal_until_it_is_found_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with site(tmp_path, [2]) as there:
            await there.joined()
            clients = [await there.connect() for _ in USERS]
            shown = [(await clients[0].recommend(user))[1]["decision"] for user in USERS]
            for client, user in zip(clients, USERS, strict=True):
                client.say("/v1/recommend", {"user": user, "items": ITEMS})
            for server in there.router.shards:
                trunk = server.trunk()
                assert trunk is not None
                trunk.transport.abort()
            assert {(await client.hear())[0] for client in clients} <= {200, 503}
            await there.joined()
            for decision in shown:
                told = {"decision": decision, "reward": 1.0}
                assert await clients[0].ask("/v1/feedback", told) == (200, {"counted": True})

    uvloop.run(play())


def test_a_listener_that_nobody_has_joined_yet_stays(tmp_path: Path) -> None:
    async def play() -> None:
        async with site(tmp_path, [2]) as there:
            gc.collect()
            await there.joined()

    uvloop.run(play())


def test_what_cannot_be_read_is_refused_in_its_turn_and_disturbs_nobody(tmp_path: Path) -> None:
    """A field as deep as a decoder goes, text that is none, a body that is too long."""
    deep = b'{"user": "ann", "x": ' + b"[" * 5000
    odd = [(deep, 422), (b'{"user": "J\xf6rg"}', 400), (b" " * (HTTP.max_body_bytes + 1), 413)]

    async def play() -> None:
        async with site(tmp_path, [2]) as there:
            await there.joined()
            victims = [await there.connect() for _ in range(6)]
            for path in ("/v1/recommend", "/v1/feedback", "/v1/recommend/batch"):
                for body, status in odd:
                    for _ in range(3):
                        attacker = await there.connect()
                        attacker.say("/v1/recommend", {"user": "ann", "items": ITEMS})
                        attacker.write(path, body)
                        assert (await attacker.hear())[0] == 200
                        expected = {status, 400, 422} if status != 413 else {413}
                        assert (await attacker.hear())[0] in expected
                    for victim, user in zip(victims, USERS, strict=False):
                        victim.say("/v1/recommend", {"user": user, "items": ITEMS})
                    assert {(await victim.hear())[0] for victim in victims} == {200}
            client = await there.connect()
            client.writer.write(b"GET /shards/" + b"1" * 5000 + b"/readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.hear())[0] == 404

    uvloop.run(play())


def test_an_unknown_decision_is_admitted_once_by_each_shard(tmp_path: Path) -> None:
    async def play() -> None:
        async with site(tmp_path, [1, 2], max_requests_per_second=4) as there:
            await there.joined()
            client = await there.connect()
            told = {"decision": "0" * 32, "reward": 1.0}
            assert [(await client.ask("/v1/feedback", told))[0] for _ in range(4)] == [404] * 4

    uvloop.run(play())


class Plain:
    """A handler that says in which turn it was asked."""

    asked = 0

    def direct(self, request: Request) -> None:
        return None

    async def handle(self, request: Request, sink: Sink) -> None:
        self.asked += 1
        sink(answer_of(200, b"%d" % self.asked).raw)

    async def sought(self, *_: Any) -> None:
        raise AssertionError

    def fault(self, error: Exception) -> None:
        raise error


def test_who_does_not_read_is_neither_answered_nor_heard() -> None:
    async def play() -> None:
        wire, handler = Wire(), Plain()
        front = Front(handler, 1000)
        front.connection_made(cast(asyncio.Transport, wire))
        front.pause_writing()
        front.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 40)
        for _ in range(5):
            await asyncio.sleep(0)
        assert (handler.asked, wire.sent, wire.reading) == (0, [], False)
        front.resume_writing()
        async with asyncio.timeout(60):
            while len(wire.sent) < 40:
                await asyncio.sleep(0)
        assert [int(answer.rpartition(b"\r\n")[2]) for answer in wire.sent] == [*range(1, 41)]
        assert wire.reading

    uvloop.run(play())


def test_no_more_is_read_from_a_shard_than_the_client_reads() -> None:
    source, written = Wire(), list[bytes]()
    sink = Sink(written.append)
    sink.pause()
    reading = []
    with sink.flowing(cast(asyncio.Transport, source)):
        reading.append(source.reading)
        sink.resume()
        reading.append(source.reading)
        sink(b"answer")
        sink.pause()
        reading.append(source.reading)
    reading.append(source.reading)
    assert reading == [False, True, False, True], "at last, as the connection is used again"
    assert written == [b"answer"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/recommend HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
        (b"GET /" + b"x" * (HEADER_BYTES + 1), 431),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (HEADER_BYTES + 1), 431),
        (b"GET / HTTP/1.1\r\n" + (b"X: " + b"x" * 999 + b"\r\n") * 70, 431),
    ],
)
def test_a_head_that_is_too_long_or_of_another_protocol_is_refused_once(
    head: bytes, status: int
) -> None:
    async def play() -> None:
        wire, handler = Wire(), Plain()
        front = Front(handler, 1000)
        front.connection_made(cast(asyncio.Transport, wire))
        front.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for start in range(0, len(head), 1000):
            front.data_received(head[start : start + 1000])
        for _ in range(5):
            await asyncio.sleep(0)
        first, last = wire.sent
        assert first.startswith(b"HTTP/1.1 200 ")
        assert last.startswith(b"HTTP/1.1 %d " % status)
        assert (handler.asked, wire.closed) == (1, True)

    uvloop.run(play())


def test_a_request_for_a_head_gets_one_and_the_next_its_answer(tmp_path: Path) -> None:
    async def play() -> None:
        async with site(tmp_path, [2]) as there:
            await there.joined()
            client = await there.connect()
            for path in (b"/v1/users/ann", b"/shards/1/readyz", b"/readyz"):
                client.writer.write(b"HEAD %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                assert await client.hear(body=False) == (405, None)
            assert (await client.recommend("ann"))[0] == 200

    uvloop.run(play())


def test_a_server_that_stops_answers_what_has_come(tmp_path: Path) -> None:
    async def play() -> None:
        told: list[int] = []
        async with shard(tmp_path, 0) as server:
            while (trunk := server.trunk()) is None:
                await asyncio.sleep(0.001)
            authorization = f"Bearer {TOKEN}".encode()
            body = json.dumps({"user": "ann", "items": ITEMS}).encode()
            for _ in range(50):
                trunk.ask("/v1/recommend", authorization, body, lambda status, _: told.append(status))
            while not told:
                await asyncio.sleep(0.001)
        for _ in range(5):
            await asyncio.sleep(0)
        assert told == [200] * 50

    uvloop.run(play())


def test_clients_that_go_or_say_goodbye_leave_nothing_behind(tmp_path: Path) -> None:
    async def play() -> None:
        async with site(tmp_path, [2]) as there:
            await there.joined()
            for user in USERS:
                gone = await there.connect()
                gone.say("/v1/recommend", {"user": user, "items": ITEMS})
                await gone.writer.drain()
                gone.writer.transport.abort()
            last = await there.connect()
            last.say("/v1/recommend", {"user": "ann", "items": ITEMS}, close=True)
            assert (await last.hear())[0] == 200
            assert last.closes
            assert await last.ended()
            client = await there.connect()
            assert (await client.recommend("ann"))[0] == 200
            refused = await client.recommend("ann", items=[])
            assert refused[0] == 422
            client.writer.write(b"nonsense\r\n\r\n")
            assert (await client.hear())[0] == 400
            assert await client.ended()

    uvloop.run(play())
