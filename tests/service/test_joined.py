"""Answers that leave in one piece."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from fclub.service.http.joined import Joined, JoinedProtocol


class Wire:
    """A transport that remembers what it was told."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = self.paused = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def joined(wire: Wire) -> Joined:
    return Joined(cast(asyncio.Transport, wire), asyncio.get_running_loop())


async def turn() -> None:
    await asyncio.sleep(0)


def test_what_is_written_at_a_time_is_sent_at_once() -> None:
    async def play() -> None:
        wire = Wire()
        transport = joined(wire)
        transport.write(b"head ")
        transport.write(b"body")
        assert wire.sent == []
        await turn()
        assert wire.sent == [b"head body"]
        transport.write(b"more")
        await turn()
        await turn()
        assert wire.sent == [b"head body", b"more"]

    asyncio.run(play())


def test_what_was_written_is_sent_before_a_connection_closes() -> None:
    async def play() -> None:
        wire = Wire()
        transport = joined(wire)
        transport.write(b"last words")
        transport.close()
        assert (wire.sent, wire.closed) == ([b"last words"], True)
        transport.write(b"too late")
        await turn()
        assert wire.sent == [b"last words"]

    asyncio.run(play())


def test_nothing_is_sent_to_a_client_that_has_gone() -> None:
    async def play() -> None:
        wire = Wire()
        transport = joined(wire)
        transport.write(b"hello")
        wire.closed = True
        await turn()
        assert wire.sent == []

    asyncio.run(play())


def test_all_else_is_left_to_the_transport() -> None:
    async def play() -> None:
        wire = Wire()
        transport = joined(wire)
        transport.pause_reading()
        assert wire.paused
        assert transport.get_extra_info("peername", "nobody") == "nobody"

    asyncio.run(play())


async def answered(scope: Scope, receive: Receive, send: Send) -> None:
    """An answer of which half comes once somebody has seen the other."""
    headers = [(b"content-length", b"6")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await scope["state"]["seen"].wait()
    await send({"type": "http.response.body", "body": b"two"})


async def until(wire: Wire, writes: int) -> None:
    async with asyncio.timeout(10):
        while len(wire.sent) < writes:
            await turn()


def test_head_and_body_are_one_write_and_a_stream_does_not_wait() -> None:
    async def play() -> None:
        wire, seen = Wire(), asyncio.Event()
        config = uvicorn.Config(answered, lifespan="off", log_config=None)
        config.load()
        protocol = JoinedProtocol(config, ServerState(), {"seen": seen}, asyncio.get_running_loop())
        protocol.connection_made(cast(asyncio.Transport, wire))
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(wire, 1)
        assert wire.sent[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert wire.sent[0].endswith(b"\r\n\r\none")
        seen.set()
        await until(wire, 2)
        assert wire.sent[1:] == [b"two"]
        protocol.connection_lost(ConnectionResetError())

    asyncio.run(play())
