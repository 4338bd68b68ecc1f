"""Short requests of a moment as one message, from the router of a site to a shard, and back.

HTTP costs a shard as much as to answer, mostly for system calls and a parser that serve one request
each. A route that answers at once needs only a body and who asks; what comes together travels together.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar, cast

import msgspec
from starlette.types import Message, Scope

from fclub.errors import Gone
from fclub.service.http.gate import FAILED, FAILURE, Endpoint, Respond, Routes, status_of
from fclub.service.monitoring import Monitor

LENGTH_BYTES = 4
"""Before each message."""

STOP_SECONDS = 10.0
"""How long a shard that stops waits for its last answers."""


def trunk_of(path: str) -> str:
    """Where a server behind the Unix socket of this path takes such messages."""
    return f"{path}.trunk"


class Asked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A POST to a route; `number` is the asker's."""

    number: int
    path: str
    authorization: bytes
    body: bytes


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Status and JSON of the answer to the request of that number."""

    number: int
    status: int
    body: bytes


_asked = msgspec.msgpack.Decoder(list[Asked])
_told = msgspec.msgpack.Decoder(list[Told])
_encoder = msgspec.msgpack.Encoder()

One = TypeVar("One", Asked, Told)


class _End(asyncio.Protocol):
    """One end of a connection; what is put within a turn of the event loop leaves as one message."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = bytearray()
        self._leaving: list[Asked | Told] = []
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def _put(self, one: Asked | Told) -> None:
        if not self._leaving:
            self._loop.call_soon(self._send)
        self._leaving.append(one)

    def _send(self) -> None:
        leaving, self._leaving = self._leaving, []
        if leaving and not self.transport.is_closing():
            data = _encoder.encode(leaving)
            self.transport.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)

    def _read(self, data: bytes, decoder: msgspec.msgpack.Decoder[list[One]]) -> list[One]:
        """What whole messages hold, of all that was received so far."""
        self._received += data
        found: list[One] = []
        start = 0
        with memoryview(self._received) as received:
            while len(received) >= (first := start + LENGTH_BYTES):
                end = first + int.from_bytes(received[start:first], "big")
                if len(received) < end:
                    break
                found += decoder.decode(received[first:end])
                start = end
        del self._received[:start]
        return found


class Trunk(_End):
    """The router's end."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[int, Respond] = {}
        self._number = 0

    def ask(self, path: str, authorization: bytes, body: bytes, respond: Respond) -> None:
        """Have this called with the answer, which is a refusal if the connection is lost.

        It is called from the event loop: one that fails disturbs no other.
        """
        self._number += 1
        self._asked[self._number] = respond
        self._put(Asked(self._number, path, authorization, body))

    def data_received(self, data: bytes) -> None:
        for told in self._read(data, _told):
            self._loop.call_soon(self._asked.pop(told.number), told.status, told.body)

    def connection_lost(self, error: Exception | None) -> None:
        lost, self._asked = self._asked, {}
        refused = status_of(Gone()), msgspec.json.encode({"error": "the connection was lost"})
        for respond in lost.values():
            self._loop.call_soon(respond, *refused)


class Branch(_End):
    """The shard's end; `at_once` are routes by method and path, `joined` all such ends."""

    def __init__(
        self, at_once: Mapping[tuple[str, str], Endpoint], monitor: Monitor, joined: set[Branch]
    ) -> None:
        super().__init__()
        self._at_once, self._monitor, self._joined = at_once, monitor, joined
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._joined.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._joined.discard(self)

    def data_received(self, data: bytes) -> None:
        for asked in self._read(data, _asked):
            self._open += 1
            self._idle.clear()
            try:
                self._answer(asked)
            except Exception as error:
                self._fail(asked, error)

    def _answer(self, asked: Asked) -> None:
        endpoint = self._at_once["POST", asked.path]
        headers = [(b"authorization", asked.authorization)]
        scope = {"type": "http", "method": "POST", "path": asked.path, "headers": headers}
        if not endpoint.answer_at_once(scope, asked.body, partial(self._tell, asked.number)):
            task = self._loop.create_task(self._work(endpoint, scope, asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _tell(self, number: int, status: int, body: bytes) -> None:
        self._open -= 1
        if not self._open:
            self._idle.set()
        self._put(Told(number, status, body))

    def _fail(self, asked: Asked, error: Exception) -> None:
        self._monitor.fault(error)
        self._tell(asked.number, FAILED, msgspec.json.encode({"error": FAILURE}))

    async def _work(self, endpoint: Endpoint, scope: Scope, asked: Asked) -> None:
        """What cannot be answered at once, as a server would have it done."""
        status, parts = FAILED, list[bytes]()

        async def receive() -> Message:
            return {"type": "http.request", "body": asked.body}

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))

        try:
            await endpoint(scope, receive, send)
        except Exception as error:
            self._fail(asked, error)
        else:
            self._tell(asked.number, status, b"".join(parts))

    async def close(self) -> None:
        """Take no more requests, answer those that have come, and hang up."""
        self.transport.pause_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._idle.wait()
        self._send()
        self.transport.close()


@asynccontextmanager
async def branches(app: Routes, listener: socket.socket) -> AsyncIterator[None]:
    """Take messages of routers meanwhile. A server must be referred to, or uvloop ends it."""
    joined: set[Branch] = set()
    branch = partial(Branch, app.at_once, app.gate.monitor, joined)
    server = await asyncio.get_running_loop().create_unix_server(branch, sock=listener)
    try:
        yield
    finally:
        server.close()
        await asyncio.gather(*(one.close() for one in joined))
