"""Servers behind Unix sockets: requests are passed on to them over connections that are kept open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple, cast

import httptools
import msgspec

from fclub.errors import Gone
from fclub.service.http.trunk import Trunk, trunk_of

LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

NOT_FOUND = HTTPStatus.NOT_FOUND.value

Write = Callable[[bytes], None]


class Sink:
    """Where an answer goes; while its reader is behind, no more is read from where it comes from."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self._source: asyncio.Transport | None = None
        self._paused = False

    def __call__(self, data: bytes) -> None:
        self.write(data)

    @contextmanager
    def flowing(self, source: asyncio.Transport) -> Iterator[None]:
        """An answer comes from there meanwhile."""
        self._source = source
        if self._paused:
            source.pause_reading()
        try:
            yield
        finally:
            self._source = None
            source.resume_reading()

    def pause(self) -> None:
        self._paused = True
        if self._source is not None:
            self._source.pause_reading()

    def resume(self) -> None:
        self._paused = False
        if self._source is not None:
            self._source.resume_reading()


class Request(NamedTuple):
    """`target` is the path with its query; `headers` are without those of one connection.

    Their names are in small letters.
    """

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def authorization(self) -> bytes:
        return next((value for name, value in self.headers if name == b"authorization"), b"")

    def encoded(self) -> bytes:
        lines = [b"%b %b HTTP/1.1\r\n" % (self.method, self.target)]
        lines += [b"%b: %b\r\n" % header for header in self.headers]
        lines.append(b"content-length: %d\r\n\r\n" % len(self.body))
        return b"".join(lines) + self.body


class Answer(NamedTuple):
    """`raw` are the bytes to pass on."""

    status: int
    body: bytes
    raw: bytes


@lru_cache(maxsize=1)
def _date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()


def answer_of(
    status: int, body: bytes, kind: bytes = b"application/json", last: bool = False
) -> Answer:
    """`last`: the connection ends with it."""
    end = b"connection: close\r\n" if last else b""
    given = LINES[status], _date(int(time.time())), kind, len(body), end, body
    raw = b"%bdate: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b" % given
    return Answer(status, body, raw)


def refusal(status: int, reason: str, last: bool = False) -> Answer:
    return answer_of(status, msgspec.json.encode({"error": reason}), last=last)


class Connection(asyncio.Protocol):
    """One kept connection to a server: one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[int] | None = None
        self._write: Write | None = None
        self._body: list[bytes] | None = None

    def exchange(self, data: bytes, write: Write, body: list[bytes] | None) -> asyncio.Future[int]:
        """Send a request; `write` what comes, its body into `body`; the result is the status."""
        self._parser = httptools.HttpResponseParser(self)
        self._write, self._body = write, body
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self._done

    @property
    def usable(self) -> bool:
        return self._done is None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._write is None:
            self.transport.abort()
            return
        self._write(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        if self._body is not None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        done, self._done = self._done, None
        if not self._parser.should_keep_alive():
            self.transport.close()
        if done is not None and not done.done():
            done.set_result(self._parser.get_status_code())

    def connection_lost(self, error: Exception | None) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            done.set_exception(Gone("the connection was lost"))


class Server:
    """A server behind a Unix socket."""

    def __init__(self, name: str, socket: str) -> None:
        self.name, self.socket = name, socket
        self._idle: list[Connection] = []
        self._trunk: Trunk | None = None
        self._joining: asyncio.Task[None] | None = None

    async def ask(self, request: Request) -> Answer:
        """The whole answer."""
        raw: list[bytes] = []
        body: list[bytes] = []
        connection = await self._connection()
        status = await self._exchange(connection, request, raw.append, body)
        return Answer(status, b"".join(body), b"".join(raw))

    async def pass_on(self, request: Request, sink: Sink) -> None:
        """The answer, byte by byte as it comes and is read."""
        connection = await self._connection()
        with sink.flowing(connection.transport):
            await self._exchange(connection, request, sink.write, None)

    async def _exchange(
        self, connection: Connection, request: Request, write: Write, body: list[bytes] | None
    ) -> int:
        try:
            status = await connection.exchange(request.encoded(), write, body)
        except asyncio.CancelledError:
            connection.transport.abort()
            raise
        self._idle.append(connection)
        return status

    def trunk(self) -> Trunk | None:
        """For short requests; while there is no connection one is made."""
        if self._trunk is not None and not self._trunk.transport.is_closing():
            return self._trunk
        if self._joining is None or self._joining.done():
            self._joining = asyncio.create_task(self._join())
        return None

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            _, self._trunk = await loop.create_unix_connection(Trunk, trunk_of(self.socket))

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(Connection, self.socket)
        except OSError:
            raise Gone(f"{self.name} is not there") from None
        return connection
