"""The page, its files, its stream, and the totals that simulated visitors leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from importlib.resources import files
from string import Template
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fclub.errors import Forbidden, NotFound, Unauthorized
from fclub.service.dashboard.recorder import Recorder, SimulatedVisitors
from fclub.service.http.gate import Gate, header_of
from fclub.service.http.keys import ADMIN

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded from elsewhere, and nothing is run that is not one of our files."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

_visitors = msgspec.json.Decoder(SimulatedVisitors)


def read_files() -> dict[str, bytes]:
    """The static files of the package by name."""
    folder = files("fclub.service.dashboard").joinpath("static")
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


def whole_page(name: str, found: dict[str, bytes]) -> bytes:
    """What all pages have, around what only this one has."""
    shell, content = found["shell.html"].decode(), found[f"{name}.html"].decode()
    return Template(shell).substitute(page=name, content=content).encode()


class Dashboard:
    """The page and its files hold no data and need no key; the stream does."""

    def __init__(self, recorder: Recorder, gate: Gate) -> None:
        self.recorder, self.gate = recorder, gate
        self._files = read_files()
        self._page = whole_page(recorder.view.page, self._files)

    def routes(self) -> list[Route]:
        route = self.gate.route
        return [
            route("/", "GET", self.page),
            route("/static/{name}", "GET", self.file),
            route("/v1/live", "GET", self.live),
            route("/v1/visitors", "POST", self.visited),
        ]

    async def page(self, request: Request) -> Response:
        return Response(self._page, media_type=TYPES["html"], headers=HEADERS)

    async def file(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self._files:
            raise NotFound(f"there is no file {name!r}")
        kind = TYPES[name.rpartition(".")[2]]
        return Response(self._files[name], media_type=kind, headers=HEADERS)

    async def live(self, request: Request) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = self._while_allowed(header_of(request.scope, b"authorization"))
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _while_allowed(self, header: bytes) -> AsyncIterator[bytes]:
        """Events until the key is taken back."""
        with suppress(Forbidden, Unauthorized):
            async for event in self.recorder.stream():
                self.gate.keys.admit(header, ADMIN)
                yield event

    async def visited(self, request: Request) -> dict[str, Any]:
        """Invented results have no place on the page of a server with real visitors: see `SIMULATE`."""
        self.recorder.visitors = await self.gate.body(request, _visitors)
        return {"visits": self.recorder.visitors.visits}
