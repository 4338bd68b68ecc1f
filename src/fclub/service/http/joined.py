"""Answers that leave in one piece.

uvicorn writes the head of an answer and then its body, and each time uvloop asks the system to send
what there is. For a short answer the second call is a tenth of what a request costs, and whoever gets
the answer has to read twice.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Joined:
    """A transport that sends all that is written in one turn of the event loop at the end of it.

    What it does not do itself the transport behind it does.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._send)
        self._held.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        held, self._held = self._held, []
        if held and not self.is_closing():
            self._transport.write(b"".join(held))


class JoinedProtocol(HttpToolsProtocol):
    """What uvicorn does with a connection, over such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Joined(transport, self.loop)))
