"""Requests that are answered without a task, and answers that leave in one piece.

uvicorn starts a task for every request, and writes the head of an answer and then its body; each time
uvloop asks the system to send what there is. For short requests that costs more than to answer them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple, cast

from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from fclub.service.http.gate import Endpoint


class Joined:
    """A transport that sends all that is written in one turn of the event loop at the end of it.

    What it does not do itself the transport behind it does.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        written, self._written = self._written, []
        if written and not self.is_closing():
            self._transport.write(b"".join(written))


class _Incomplete(NamedTuple):
    """A request whose body has not come yet."""

    cycle: RequestResponseCycle
    app: ASGIApp
    endpoint: Endpoint


class JoinedProtocol(HttpToolsProtocol):
    """What uvicorn does with a connection, over such a transport.

    Requests for routes of `Routes.at_once` are given to them when they are whole. What such a route
    leaves, what is long or awaits a word to go on, and all from a client that does not read its
    answers, gets its task.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._at_once: dict[tuple[str, str], Endpoint] = getattr(self.app, "at_once", {})
        self._incomplete: _Incomplete | None = None
        self._asking = False
        self._common: list[tuple[bytes, bytes]] = []
        self._head = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Joined(transport, self.loop)))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        endpoint = self._at_once.get((cycle.scope["method"], cycle.scope["path"]))
        tasked = app is not self.app or cycle.waiting_for_100_continue or self.flow.write_paused
        if endpoint is None or tasked:
            super()._start_asgi_task(cycle, app)
            return
        held = _Incomplete(cycle, app, endpoint)
        if cycle.more_body:
            self._incomplete = held
        else:
            self._answer(held)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        held = self._incomplete
        if held is not None and len(held.cycle.body) > held.endpoint.most_at_once:
            self._incomplete = None
            super()._start_asgi_task(held.cycle, held.app)  # type: ignore[arg-type]

    def on_message_complete(self) -> None:
        super().on_message_complete()
        held, self._incomplete = self._incomplete, None
        if held is not None:
            self._answer(held)

    def _answer(self, held: _Incomplete) -> None:
        """Ask the route; what it answers meanwhile is sent in the next turn of the event loop.

        An answer begins the next request: a long row of refusals would each be within the one before.
        """
        cycle, respond = held.cycle, partial(self._respond, held.cycle)
        self._asking = True
        try:
            answered = held.endpoint.answer_at_once(cast(Scope, cycle.scope), cycle.body, respond)
        finally:
            self._asking = False
        if not answered:
            super()._start_asgi_task(cycle, held.app)  # type: ignore[arg-type]

    def _respond(self, cycle: RequestResponseCycle, status: int, body: bytes) -> None:
        """All that uvicorn does for an answer of known length."""
        if self._asking:
            self.loop.call_soon(self._respond, cycle, status, body)
            return
        if cycle.disconnected:
            return
        if self._common is not cycle.default_headers:
            self._common = cycle.default_headers
            lines = [name + b": " + value + b"\r\n" for name, value in self._common]
            self._head = b"".join([*lines, b"content-type: application/json\r\ncontent-length: "])
        end = b"\r\n\r\n" if cycle.keep_alive else b"\r\nconnection: close\r\n\r\n"
        self.transport.write(b"%b%b%d%b%b" % (STATUS_LINE[status], self._head, len(body), end, body))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
