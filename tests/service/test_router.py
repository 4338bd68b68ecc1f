"""The router of a site before two local servers in this process, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from fclub.service.http.joined import JoinedProtocol
from fclub.service.http.trunk import Branch, trunk_of
from fclub.service.serve import local_app
from fclub.service.shards.homes import Homes
from fclub.service.shards.relay import Front, Server
from fclub.service.shards.router import Router

from .conftest import DIM, HTTP, TOKEN, local_settings

ITEMS = [{"id": str(k), "features": [0.1 * k] + [0.0] * (DIM - 1)} for k in range(3)]
USERS = [f"user-{k}" for k in range(12)]


class Client:
    """Says what it is told to, and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def say(self, path: str, value: object, close: bool = False) -> None:
        body = json.dumps(value).encode()
        last = "Connection: close\r\n" if close else ""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAUTHORIZATION: Bearer {TOKEN}\r\n{last}"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def hear(self) -> tuple[int, Any]:
        async with asyncio.timeout(60):
            head = await self._reader.readuntil(b"\r\n\r\n")
            lines = head.decode().lower().split("\r\n")
            (length,) = [int(line[16:]) for line in lines if line.startswith("content-length: ")]
            return int(lines[0].split()[1]), json.loads(await self._reader.readexactly(length))

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
    branches: dict[int, Branch]
    connect: Callable[[], Awaitable[Client]]

    async def joined(self) -> None:
        """Return when both shards have connections for short requests."""
        async with asyncio.timeout(60):
            while None in [server.trunk() for server in self.router.shards]:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def shard(folder: Path, number: int, branches: dict[int, Branch]) -> AsyncIterator[Server]:
    """An ordinary local server behind a socket."""
    (folder / str(number)).mkdir()
    app, _ = local_app(local_settings(folder / str(number), shard=number))
    path = str(folder / f"{number}.socket")
    config = uvicorn.Config(
        app, http=JoinedProtocol, uds=path, lifespan="off", log_config=None, proxy_headers=False
    )

    def branch() -> Branch:
        branches[number] = Branch(app.at_once)
        return branches[number]

    async with app.lifespan_context(app):
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        many = await asyncio.get_running_loop().create_unix_server(branch, trunk_of(path))
        while not server.started:
            await asyncio.sleep(0.001)
        yield Server(f"shard-{number}", path)
        many.close()
        server.should_exit = True
        await serving


@asynccontextmanager
async def site(folder: Path, counts: list[int]) -> AsyncIterator[Site]:
    branches: dict[int, Branch] = {}
    async with AsyncExitStack() as stack:
        shards = [await stack.enter_async_context(shard(folder, k, branches)) for k in (0, 1)]
        router = Router(Homes(counts), shards)
        loop = asyncio.get_running_loop()
        front = await loop.create_server(lambda: Front(router, HTTP.max_body_bytes), "127.0.0.1", 0)
        port, clients = front.sockets[0].getsockname()[1], list[Client]()

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
            return clients[-1]

        yield Site(router, branches, connect)
        for client in clients:
            client.writer.close()
        front.close()
        for server in shards:
            trunk = server.trunk()
            if trunk is not None:
                trunk.transport.close()


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

    asyncio.run(play())


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

    asyncio.run(play())


def test_a_shard_that_is_lost_is_a_refusal_until_it_is_found_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with site(tmp_path, [2]) as there:
            await there.joined()
            client = await there.connect()
            shown = [(await client.recommend(user))[1]["decision"] for user in USERS]
            for number in (0, 1):
                there.branches[number].transport.abort()
            again = [await client.recommend(user) for user in USERS]
            assert {status for status, _ in again} <= {200, 503}
            await there.joined()
            for decision in shown:
                told = {"decision": decision, "reward": 1.0}
                assert await client.ask("/v1/feedback", told) == (200, {"counted": True})

    asyncio.run(play())


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
            assert await last.ended()
            client = await there.connect()
            assert (await client.recommend("ann"))[0] == 200
            refused = await client.recommend("ann", items=[])
            assert refused[0] == 422
            client.writer.write(b"nonsense\r\n\r\n")
            assert (await client.hear())[0] == 400
            assert await client.ended()

    asyncio.run(play())
