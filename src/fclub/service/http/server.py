"""HTTP/1.1 on asyncio and the parser `httptools`, for the applications of this package.

Short requests for routes of `Routes.at_once` are answered without a task. Nobody needs a token to open
a connection, so each has a deadline while it brings a request and while it is idle, and there is a
bound on their number: of too many, the one that has waited longest for a request ends.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from itertools import takewhile
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import unquote

import httptools
import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from fclub.service.http.gate import Bytes, Respond
from fclub.service.monitoring import Monitor

HEAD_BYTES = 1 << 16
"""Longest head of a request."""

TOO_LONG = f"the head of a request may have {HEAD_BYTES} bytes"

BUFFERED_BYTES = 1 << 16
"""How much of a body is kept before somebody asks for it."""

PIPELINED = 16
"""Requests of one connection that wait for their answers before no more is read."""

BACKLOG = 2048
SWEEP_SECONDS = 1.0

LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE = b"connection: close\r\n"
NO_BODY = frozenset({204, 304})


class Limits(NamedTuple):
    """How many connections there may be; seconds for a request to come, between two, and to stop."""

    connections: int = 1000
    request_seconds: float = 30.0
    idle_seconds: float = 75.0
    stop_seconds: float = 20.0


class AtOnce(Protocol):
    """A route that may answer a whole request without a task: `gate.Endpoint`."""

    @property
    def most_at_once(self) -> int: ...

    def answer_at_once(self, scope: Scope, body: Bytes, respond: Respond) -> bool: ...


class Application(Protocol):
    """An ASGI application; `at_once` are some of its routes by method and path."""

    @property
    def at_once(self) -> Mapping[tuple[str, str], AtOnce]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Cycle:
    """One request and its answer."""

    def __init__(self, connection: Connection, scope: Scope, keep_alive: bool) -> None:
        self.connection, self.scope, self.keep_alive = connection, scope, keep_alive
        self.route: AtOnce | None = None
        self.body = bytearray()
        self.whole = self.queued = self.expects = self.started = self.done = False
        self._told_whole = self._chunked = False
        self._status, self._headers = 200, list[tuple[bytes, bytes]]()
        self._news: asyncio.Event | None = None

    def wake(self) -> None:
        """More of the request has come, or its connection is gone."""
        if self._news is not None:
            self._news.set()

    async def _until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            self._news = asyncio.Event()
            await self._news.wait()

    def _over(self) -> bool:
        return self.done or self.connection.gone

    async def receive(self) -> Message:
        if self._told_whole:
            await self._until(self._over)
            return {"type": "http.disconnect"}
        if self.expects and not self.started:
            self.expects = False
            self.connection.write(CONTINUE)
        await self._until(lambda: bool(self.body) or self.whole or self.connection.gone)
        if not self.whole and self.connection.gone:
            return {"type": "http.disconnect"}
        data, self.body = bytes(self.body), bytearray()
        self._told_whole = self.whole
        self.connection.read_on()
        return {"type": "http.request", "body": data, "more_body": not self.whole}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message.get("headers", ()))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        await self.connection.writable()
        if self._over():
            return
        head = b"" if self.started else self._head(len(body), more)
        self.started = True
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n" * (not more)
        if head or body:
            self.connection.write(head + body)
        if not more:
            self.connection.finish(self)

    def _head(self, size: int, more: bool) -> bytes:
        lines = [LINES[self._status], self.connection.server.date_line]
        lines += [b"%b: %b\r\n" % header for header in self._headers]
        if all(name.lower() != b"content-length" for name, _ in self._headers):
            self._chunked = more and self.scope["http_version"] == "1.1"
            if self._chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
            elif more:
                self.keep_alive = False  # the end of the connection is that of the answer
            elif self._status not in NO_BODY:
                lines.append(b"content-length: %d\r\n" % size)
        if not self.keep_alive:
            lines.append(CLOSE)
        return b"".join([*lines, b"\r\n"])

    def respond(self, status: int, body: bytes) -> None:
        """A whole answer in JSON."""
        if self._over():
            return
        self.started = True
        self.connection.write(
            b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
            % (
                LINES[status],
                self.connection.server.date_line,
                len(body),
                b"" if self.keep_alive else CLOSE,
                b"" if self.scope["method"] == "HEAD" else body,
            )
        )
        self.connection.finish(self)


class Connection(asyncio.Protocol):
    """One connection: requests are read while they come, and answered one after another."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer, handshake: TlsHandshake | None = None) -> None:
        self.server, self._handshake = server, handshake
        self.gone = False
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Cycle] = deque()
        self._active: Cycle | None = None
        self._reading: Cycle | None = None
        self._in_head = self._advancing = self._ended = self._unread = self._held = False
        self._expects, self._fed, self._size, self._url = False, 0, 0, b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._readable: asyncio.Event | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer, own = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        self._client = peer[:2] if isinstance(peer, tuple) else None
        self._own = own[:2] if isinstance(own, tuple) else None
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        if self._handshake is not None:
            self.server.left(self._handshake)
        self.server.joined(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self.server.left(self)
        for cycle in (self._active, self._reading, *self._queue):
            if cycle is not None:
                cycle.wake()
        self._queue.clear()
        if self._readable is not None:
            self._readable.set()

    def end(self) -> None:
        """Hang up, whatever was being said."""
        self.gone = True
        self.transport.abort()

    def hang_up_when_idle(self) -> None:
        """No further request is read."""
        self._ended = True
        if self._active is None and not self._queue:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read its answers; it has as long as for a request."""
        self._unread = True
        self.server.waits(self)

    def resume_writing(self) -> None:
        self._unread = False
        if self._active is None:
            self.server.rests(self)
        else:
            self.server.works(self)
        if self._readable is not None:
            self._readable.set()

    async def writable(self) -> None:
        while self._unread and not self.gone:
            self._readable = asyncio.Event()
            await self._readable.wait()

    def write(self, data: bytes) -> None:
        if not self.gone:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.gone or (self._ended and self._reading is None):
            return
        if self._active is None and self._reading is None and not self._in_head:
            self.server.waits(self)
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ended = True  # answered as if nothing had been said of another protocol
        except httptools.HttpParserCallbackError as error:
            self.server.monitor.fault(error)
            self.end()
        except httptools.HttpParserError:
            self._refuse(400, "this is not HTTP/1.1")
        if self._in_head and max(self._fed, self._size) > HEAD_BYTES:
            self._refuse(431, TOO_LONG)

    def on_message_begin(self) -> None:
        self._in_head, self._fed, self._size, self._url, self._expects = True, 0, 0, b"", False
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._size += len(name) + len(value)
        self._headers.append((name, value))
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._ended:
            return
        parser = self._parser
        path, query = self._url, b""
        if b"?" in path:
            path, _, query = path.partition(b"?")
        if not path.startswith(b"/"):  # as proxies are asked
            with suppress(httptools.HttpParserInvalidURLError):
                path = httptools.parse_url(self._url).path or b"/"
        name = path.decode("latin-1")
        method = parser.get_method().decode()
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": parser.get_http_version(),
            "method": method,
            "scheme": self._scheme,
            "path": unquote(name) if "%" in name else name,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
            "client": self._client,
            "server": self._own,
        }
        keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        if self._size > HEAD_BYTES:
            self._refuse(431, TOO_LONG)
            return
        cycle = self._reading = Cycle(self, scope, keep_alive and not self.server.stopping)
        if self._expects:
            cycle.expects = True
            self._enqueue(cycle)
        else:
            cycle.route = self.server.app.at_once.get((method, scope["path"]))

    def on_body(self, body: bytes) -> None:
        cycle = self._reading
        if cycle is None or cycle.done:
            return
        cycle.body += body
        cycle.wake()
        if len(cycle.body) > (BUFFERED_BYTES if cycle.route is None else cycle.route.most_at_once):
            cycle.route = None
            if not cycle.queued:
                self._enqueue(cycle)
            elif len(cycle.body) > BUFFERED_BYTES:
                self._hold()

    def on_message_complete(self) -> None:
        cycle, self._reading = self._reading, None
        if cycle is None:
            return
        cycle.whole = True
        cycle.wake()
        if not cycle.queued:
            self._enqueue(cycle)
        elif not cycle.done:
            self.server.works(self)
        elif self._active is None:
            self.server.rests(self)

    def _enqueue(self, cycle: Cycle) -> None:
        cycle.queued = True
        self._queue.append(cycle)
        if len(self._queue) >= PIPELINED:
            self._hold()
        self._next()

    def _next(self) -> None:
        """Begin to answer; a row of answers that are there at once is no row of nested calls."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._queue and self._active is None and not self.gone:
                cycle = self._active = self._queue.popleft()
                if cycle.whole:
                    self.server.works(self)
                route = None if self._unread and not self._ended else cycle.route
                if route is None or not route.answer_at_once(cycle.scope, cycle.body, cycle.respond):
                    self.server.begin(self._run(cycle))
        finally:
            self._advancing = False

    async def _run(self, cycle: Cycle) -> None:
        try:
            await self.server.app(cycle.scope, cycle.receive, cycle.send)
        except ClientDisconnect:
            self.end()
        except Exception as error:
            self.server.monitor.fault(error)
            self.end()  # an answer that has begun cannot be mended
        if not cycle.done:
            self.end()

    def finish(self, cycle: Cycle) -> None:
        """An answer is complete; what still comes of its request is not looked at."""
        cycle.done, self._active = True, None
        cycle.wake()
        if not cycle.keep_alive or (self._ended and not self._queue):
            self._ended = True
            self.transport.close()
            return
        if self._reading is None and not self._in_head:
            self.server.rests(self)
        else:
            self.server.waits(self)
        self.read_on()
        self._next()

    def _hold(self) -> None:
        if not self._held:
            self._held = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        if self._held and len(self._queue) < PIPELINED and not self.gone:
            self._held = False
            self.transport.resume_reading()

    def _refuse(self, status: int, reason: str) -> None:
        """Answer what cannot be read after all that came before, and read no more."""
        if self._ended:
            return
        if self._reading is not None and self._reading.queued:
            self.end()
            return
        self._ended, self._in_head, self._reading = True, False, None
        cycle = Cycle(self, {"method": ""}, keep_alive=False)
        cycle.route, cycle.whole = _Refusal(status, reason), True
        self._enqueue(cycle)


class TlsHandshake:
    """A connection that is not encrypted yet: it counts as any other, from its first packet on."""

    def __init__(self, server: HttpServer, accepted: socket.socket) -> None:
        self._server, self._socket = server, accepted

    async def run(self, context: ssl.SSLContext) -> None:
        """Shake hands within the time of a request; who cannot is let go without a word."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            await loop.connect_accepted_socket(
                lambda: Connection(self._server, self),
                self._socket,
                ssl=context,
                ssl_handshake_timeout=self._server.limits.request_seconds,
            )
        self._server.left(self)

    def end(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    hang_up_when_idle = end


class _Refusal(NamedTuple):
    """Answers without a look at the request."""

    status: int
    reason: str

    @property
    def most_at_once(self) -> int:
        return 0

    def answer_at_once(self, scope: Scope, body: Bytes, respond: Respond) -> bool:
        respond(self.status, msgspec.json.encode({"error": self.reason}))
        return True


Connected = Connection | TlsHandshake


class HttpServer:
    """All connections of an application.

    `_waiting` are those that bring a request or do not read their answer, `_resting` those that were
    answered, each with the time since when, longest first.
    """

    def __init__(self, app: Application, limits: Limits, monitor: Monitor) -> None:
        self.app, self.limits, self.monitor = app, limits, monitor
        self.stopping = False
        self._loop = asyncio.get_running_loop()
        self._listening: list[asyncio.Server] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[Connected] = set()
        self._waiting: dict[Connected, float] = {}
        self._resting: dict[Connected, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._set_date()

    async def start(self, listeners: list[socket.socket], context: ssl.SSLContext | None) -> None:
        for listener in listeners:
            if context is not None:
                listener.listen(BACKLOG)
                listener.setblocking(False)
                self._accepting.append(self._loop.create_task(self._accept(listener, context)))
                continue
            self._listening.append(
                await self._loop.create_server(lambda: Connection(self), sock=listener, backlog=BACKLOG)
            )
        self._sweeping = self._loop.create_task(self._sweep())

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """The loop's own server would count a connection only once it is encrypted."""
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listener)
            except ConnectionError:
                continue
            except OSError as error:  # too many files are open
                self.monitor.fault(error)
                await asyncio.sleep(SWEEP_SECONDS)
                continue
            handshake = TlsHandshake(self, accepted)
            self.joined(handshake)
            self.begin(handshake.run(context))

    async def stop(self) -> None:
        """Take no more requests, and wait for the answers that are due."""
        self.stopping = True
        for server in self._listening:
            server.close()
        for accepting in self._accepting:
            accepting.cancel()
        for connection in list(self._connections):
            connection.hang_up_when_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.stop_seconds):
                while self._connections:
                    await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.end()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def joined(self, connection: Connected) -> None:
        if len(self._connections) >= self.limits.connections:
            oldest = next(iter(self._waiting), None) or next(iter(self._resting), connection)
            self._drop(oldest)
            if oldest is connection:
                return
        self._connections.add(connection)
        self.waits(connection)

    def left(self, connection: Connected) -> None:
        self._connections.discard(connection)
        self.works(connection)

    def waits(self, connection: Connected) -> None:
        self.works(connection)
        self._waiting[connection] = self._loop.time()

    def works(self, connection: Connected) -> None:
        self._waiting.pop(connection, None)
        self._resting.pop(connection, None)

    def rests(self, connection: Connected) -> None:
        self.works(connection)
        self._resting[connection] = self._loop.time()

    def _drop(self, connection: Connected) -> None:
        self.left(connection)
        self.monitor.dropped.inc()
        connection.end()

    def _set_date(self) -> None:
        self.date_line = f"date: {formatdate(usegmt=True)}\r\n".encode()

    async def _sweep(self) -> None:
        limits = self.limits
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._set_date()
            now = self._loop.time()
            for connection in _since(self._waiting, now - limits.request_seconds):
                self._drop(connection)
            for connection in _since(self._resting, now - limits.idle_seconds):
                self.works(connection)
                connection.hang_up_when_idle()


def _since(found: Mapping[Connected, float], moment: float) -> list[Connected]:
    """Those that are there since before that moment, which are the first."""
    return [one for one, _ in takewhile(lambda entry: entry[1] < moment, found.items())]
