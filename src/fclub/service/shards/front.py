"""HTTP/1.1 as clients of a site speak it.

Short requests for one shard travel to it together, as messages of a `Trunk`. Each of the others is
passed on as it is, or answered from what several shards say.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Protocol, cast

import httptools

from fclub.errors import FclubError
from fclub.service.http.gate import AT_ONCE_BYTES, FAILED, FAILURE, status_of
from fclub.service.shards.relay import NOT_FOUND, Answer, Request, Server, Sink, answer_of, refusal

HEADER_BYTES = 1 << 16
WAITING = 16
"""Requests of one connection that may wait for an answer before no more is read."""

PATIENCE = 64
"""How many times too long a body may be and still be read to its end, to be refused in words."""

HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"expect", b"upgrade"}
"""Headers that are about one connection, not about the request."""


class Handler(Protocol):
    """Answers requests.

    A short one that `direct` finds a server for needs no task of its own; what that server does not
    find is `sought` elsewhere. `fault` is told of errors of this program.
    """

    def direct(self, request: Request) -> Server | None: ...

    async def handle(self, request: Request, sink: Sink) -> None: ...

    async def sought(self, request: Request, asked: Server, answer: Answer, sink: Sink) -> None: ...

    def fault(self, error: Exception) -> None: ...


class Front(asyncio.Protocol):
    """One connection of a client: its requests are answered one after another."""

    transport: asyncio.Transport

    def __init__(self, handler: Handler, max_body: int) -> None:
        self._handler, self._max_body = handler, max_body
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[tuple[Request, bool]] = deque()
        self._last: Answer | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking = self._written = self._unread = False
        self._sink = Sink(self._write)
        self._begin()

    def _begin(self) -> None:
        self._target, self._size = b"", 0
        self._in_head, self._head_bytes = True, 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not read: nothing more is answered or passed on until it does."""
        self._unread = True
        self._sink.pause()

    def resume_writing(self) -> None:
        self._unread = False
        self._sink.resume()
        if self._idle:
            self._next()

    @property
    def _idle(self) -> bool:
        return self._task is None and not self._asking

    def data_received(self, data: bytes) -> None:
        if self._last is not None:
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # refused when the message was complete
        except httptools.HttpParserError:
            self._end(400, "this is not HTTP")
        if self._in_head and self._head_bytes > HEADER_BYTES:
            self._end(431, "the headers are too long")

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        key = name.lower()
        if self._size > HEADER_BYTES:
            self._end(431, "the headers are too long")
        elif key not in HOP:
            self._headers.append((key, value))
        elif key == b"expect" and self._idle and not self._requests:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._size, self._in_head = 0, False

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._max_body:
            self._body.append(body)
        elif self._size > PATIENCE * self._max_body:
            self.transport.abort()

    def on_message_complete(self) -> None:
        if self._size > self._max_body:
            self._end(413, f"a body may have {self._max_body} bytes")
        if self._parser.should_upgrade():  # its body was skipped
            self._end(400, "this server speaks HTTP/1.1 only")
        if self._last is not None or self.transport.is_closing():
            return
        method, keep = self._parser.get_method(), self._parser.should_keep_alive()
        request = Request(method, self._target, self._headers, b"".join(self._body))
        self._requests.append((request, keep))
        self._begin()
        if len(self._requests) >= WAITING:
            self.transport.pause_reading()
        if self._idle:
            self._next()

    def _end(self, status: int, reason: str) -> None:
        """Refuse what came last, after all that came before, and hear no more."""
        if self._last is None:
            self._last = refusal(status, reason, last=True)
            if self._idle:
                self._next()

    def _next(self) -> None:
        """Begin to answer the oldest request."""
        if self.transport.is_closing() or self._unread:
            return
        if not self._requests:
            if self._last is not None:
                self._write(self._last.raw)
                self.transport.close()
            else:
                self.transport.resume_reading()
            return
        request, keep = self._requests.popleft()
        self._written = False
        server = self._direct(request) if len(request.body) <= AT_ONCE_BYTES else None
        trunk = None if server is None else server.trunk()
        if server is None or trunk is None:
            self._task = asyncio.create_task(self._answer(request, keep))
            return
        self._asking = True
        respond = partial(self._told, request, keep, server)
        trunk.ask(request.target.decode(), request.authorization, request.body, respond)

    def _direct(self, request: Request) -> Server | None:
        try:
            return self._handler.direct(request)
        except Exception as error:
            self._handler.fault(error)
            return None

    def _told(self, request: Request, keep: bool, server: Server, status: int, body: bytes) -> None:
        self._asking = False
        if self.transport.is_closing():
            return
        answer = answer_of(status, body, last=not keep)
        if status == NOT_FOUND:
            self._task = asyncio.create_task(self._answer(request, keep, (server, answer)))
        else:
            self._write(answer.raw)
            self._go_on(keep)

    async def _answer(
        self, request: Request, keep: bool, known: tuple[Server, Answer] | None = None
    ) -> None:
        try:
            if known is None:
                await self._handler.handle(request, self._sink)
            else:
                await self._handler.sought(request, *known, self._sink)
        except FclubError as error:
            self._fail(status_of(error), str(error))
        except Exception as error:
            self._handler.fault(error)
            self._fail(FAILED, FAILURE)
        self._task = None
        self._go_on(keep)

    def _fail(self, status: int, reason: str) -> None:
        if self._written:
            self.transport.abort()  # half an answer cannot be mended
        else:
            self._write(refusal(status, reason).raw)

    def _go_on(self, keep: bool) -> None:
        if keep:
            self._next()
        else:
            self.transport.close()

    def _write(self, data: bytes) -> None:
        self._written = True
        self.transport.write(data)
