"""HTTP/1.1 passed on to servers behind Unix sockets, over connections that are kept open.

Short requests for one server travel together, as `trunk` messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import httptools
import msgspec

from fclub.errors import Gone
from fclub.service.http.gate import AT_ONCE_BYTES
from fclub.service.http.trunk import Trunk, trunk_of

HEADER_BYTES = 1 << 16
WAITING = 16
"""Requests of one connection that may wait for an answer before no more is read."""

PATIENCE = 64
"""How many times too long a body may be and still be read to its end, to be refused in words."""

HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"expect", b"upgrade"}
"""Headers that are about one connection, not about the request."""

LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

NOT_FOUND = 404

Sink = Callable[[bytes], None]


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


def answer_of(status: int, body: bytes, kind: bytes = b"application/json") -> Answer:
    head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (LINES[status], kind, len(body))
    return Answer(status, body, head + body)


def refusal(status: int, reason: str) -> Answer:
    return answer_of(status, msgspec.json.encode({"error": reason}))


class Connection(asyncio.Protocol):
    """One kept connection to a server: one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[int] | None = None
        self._sink: Sink | None = None
        self._body: list[bytes] | None = None

    def exchange(self, data: bytes, sink: Sink, body: list[bytes] | None = None) -> asyncio.Future[int]:
        """Send a request; what comes goes to `sink`, its body to `body`; the result is the status."""
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._body = sink, body
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self._done

    @property
    def usable(self) -> bool:
        return self._done is None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._sink is None:
            self.transport.abort()
            return
        self._sink(data)
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
        status = await self._exchange(request, raw.append, body)
        return Answer(status, b"".join(body), b"".join(raw))

    async def pass_on(self, request: Request, sink: Sink) -> None:
        """The answer, byte by byte as it comes."""
        await self._exchange(request, sink, None)

    async def _exchange(self, request: Request, sink: Sink, body: list[bytes] | None) -> int:
        connection = await self._connection()
        try:
            status = await connection.exchange(request.encoded(), sink, body)
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


class Handler(Protocol):
    """Answers requests. One that a single server answers as it is needs no task of its own.

    What that server does not find is looked for elsewhere, unless the handler is `sure`.
    """

    sure: bool

    def direct(self, request: Request) -> Server | None: ...

    async def handle(self, request: Request, sink: Sink) -> None: ...


class Front(asyncio.Protocol):
    """One connection of a client: its requests are answered one after another."""

    transport: asyncio.Transport

    def __init__(self, handler: Handler, max_body: int) -> None:
        self._handler, self._max_body = handler, max_body
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._asking = self._written = False
        self._begin()

    def _begin(self) -> None:
        self._target, self._size = b"", 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end(400, "this server speaks HTTP/1.1 only")
        except httptools.HttpParserError:
            self._end(400, "this is not HTTP")

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        key = name.lower()
        if self._size > HEADER_BYTES:
            self._end(431, "the headers are too long")
        elif key not in HOP:
            self._headers.append((key, value))
        elif key == b"expect":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._size = 0

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._max_body:
            self._body.append(body)
        elif self._size > PATIENCE * self._max_body:
            self.transport.abort()

    def on_message_complete(self) -> None:
        if self._size > self._max_body:
            self._end(413, f"a body may have {self._max_body} bytes")
        if self.transport.is_closing():
            return
        method, keep = self._parser.get_method(), self._parser.should_keep_alive()
        request = Request(method, self._target, self._headers, b"".join(self._body))
        self._requests.append((request, keep))
        self._begin()
        if len(self._requests) >= WAITING:
            self.transport.pause_reading()
        if self._task is None and not self._asking:
            self._next()

    def _next(self) -> None:
        """Begin to answer the oldest request."""
        if not self._requests or self.transport.is_closing():
            self.transport.resume_reading()
            return
        request, keep = self._requests.popleft()
        self._written = False
        short = len(request.body) <= AT_ONCE_BYTES
        server = self._handler.direct(request) if short else None
        trunk = None if server is None else server.trunk()
        if trunk is None:
            self._begin_task(request, keep)
            return
        self._asking = True
        told = partial(self._told, request, keep)
        trunk.ask(request.target.decode(), request.authorization, request.body, told)

    def _told(self, request: Request, keep: bool, status: int, body: bytes) -> None:
        self._asking = False
        if self.transport.is_closing():
            return
        if status == NOT_FOUND and not self._handler.sure:
            self._begin_task(request, keep)
        else:
            self._write(answer_of(status, body).raw)
            self._go_on(keep)

    def _begin_task(self, request: Request, keep: bool) -> None:
        self._task = asyncio.create_task(self._answer(request, keep))

    async def _answer(self, request: Request, keep: bool) -> None:
        try:
            await self._handler.handle(request, self._write)
        except Gone as error:
            self._fail(error)
        self._task = None
        self._go_on(keep)

    def _fail(self, error: BaseException) -> None:
        if self._written:
            self.transport.abort()  # half an answer cannot be mended
        else:
            self._write(refusal(503, str(error)).raw)

    def _go_on(self, keep: bool) -> None:
        if keep:
            self._next()
        else:
            self.transport.close()

    def _write(self, data: bytes) -> None:
        self._written = True
        self.transport.write(data)

    def _end(self, status: int, reason: str) -> None:
        if not self.transport.is_closing():
            answer = refusal(status, reason).raw
            self.transport.write(answer.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
            self.transport.close()
