"""What all HTTP routes share: keys, limits, JSON in and out, and one table of errors."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from fclub.buckets import HEADER
from fclub.errors import (
    CannotForget,
    CannotReplace,
    FclubError,
    Forbidden,
    InvalidInput,
    Malformed,
    NotFound,
    NotStored,
    OtherBucket,
    OtherReward,
    TooFast,
    TooLarge,
    Unauthorized,
    WasForgotten,
)
from fclub.service.http.access import REFUSED, Access
from fclub.service.http.keys import Keys, needed
from fclub.service.monitoring import Monitor
from fclub.service.settings import Http

UNKNOWN = "unknown"
"""What requests for no route are counted as."""

STATUS: tuple[tuple[type[FclubError], int], ...] = (
    (Malformed, 400),
    (OtherBucket, 400),
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (OtherReward, 409),
    (WasForgotten, 409),
    (CannotForget, 409),
    (CannotReplace, 409),
    (TooLarge, 413),
    (InvalidInput, 422),
    (TooFast, 429),
    (NotStored, 503),
)

FAILED = 500
"""The status of any other error."""

FAILURE = "the server has failed"

Body = TypeVar("Body")
Bytes = bytes | bytearray
Answer = Callable[[Request], Awaitable[Any]]
AtOnce = Callable[[Bytes, Scope], Any]
"""What a route answers to a body without waiting for anything but the disk; None if it cannot."""

Respond = Callable[[int, bytes], None]
"""Takes the status and the body of an answer."""

WhenStored = Callable[[Callable[[NotStored | None], None]], None]

ADMITTED = "fclub.admitted"
"""In the scope of a request that has passed the gate before."""

AT_ONCE_BYTES = 1 << 16
"""Longer bodies are read as they come."""

QUOTED = 16
"""Characters of a wrong header that are repeated."""

_BUCKET = HEADER.lower().encode()
_encoder = msgspec.json.Encoder()


def status_for(kind: type[FclubError]) -> int | None:
    """What an error of this kind is answered with; None of one that no request is refused with."""
    return next((status for known, status in STATUS if issubclass(kind, known)), None)


def status_of(error: FclubError) -> int:
    return status_for(type(error)) or FAILED


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status, media_type="application/json")


async def _send_json(
    send: Send, value: Any, status: int, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a JSON answer without building a response object."""
    body = _encoder.encode(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def header_of(scope: Scope, name: bytes) -> bytes:
    """The first header of that name, or nothing."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return b""


def check_bucket(scope: Scope, buckets: Iterable[str]) -> None:
    """Refuse a request with a header that is not the bucket of everybody whom it is about.

    A proxy has chosen this server by the header: another user may be at home elsewhere.
    """
    header = header_of(scope, _BUCKET)
    if not header:
        return
    given = header.decode("latin-1")
    for bucket in buckets:
        if bucket != given:
            raise OtherBucket(
                f"{HEADER} is {given[:QUOTED]!r}, but the request is about bucket {bucket!r}: send the "
                "first two hexadecimal digits of the SHA-256 of the user's id, and in one request only "
                "users who share them; or no such header"
            )


def _quoted(raw: bytes) -> str:
    """A path in which a slash that was quoted still is: it belongs to an id, and to no route."""
    return "/".join(quote(unquote_to_bytes(part), safe="") for part in raw.split(b"/"))


class Routes(Router):
    """A router that looks paths without parameters up instead of trying one pattern after another.

    Also what it does not find is answered in JSON, and counted.
    """

    def __init__(self, gate: Gate, routes: list[Route], lifespan: Any) -> None:
        super().__init__(routes, lifespan=lifespan, redirect_slashes=False)
        self.gate = gate
        self._unknown = gate.monitor.traffic.route(UNKNOWN)
        self._fixed: dict[tuple[str, str], ASGIApp] = {
            (method, route.path): route.app
            for route in routes
            for method in route.methods or ()
            if not route.param_convertors
        }
        self.at_once = {
            key: found
            for key, found in self._fixed.items()
            if isinstance(found, Endpoint) and found.is_at_once
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = scope["type"] == "http" and self._fixed.get((scope["method"], scope["path"]))
        await (found or super().__call__)(scope, receive, send)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().app(scope, receive, send)
            return
        allowed: set[str] = set()
        asked = {**scope, "path": _quoted(scope["raw_path"])}
        for route in self.routes:
            match, child = route.matches(asked)
            if match is Match.FULL:
                found = child["path_params"]
                child["path_params"] = {name: unquote(text) for name, text in found.items()}
                await route.handle({**scope, **child}, receive, send)
                return
            if match is Match.PARTIAL and isinstance(route, Route):
                allowed |= route.methods or set()
        await self._refuse(scope, send, allowed)

    async def _refuse(self, scope: Scope, send: Send, allowed: set[str]) -> None:
        status, error = 404, "there is no such route"
        headers = []
        if allowed:
            methods = ", ".join(sorted(allowed))
            status, error = 405, f"{scope['method']} is not possible here, but {methods}"
            headers = [(b"allow", methods.encode())]
        self._unknown.add(status, 0.0)
        self.gate.access.answered(scope, UNKNOWN, status, 0.0)
        await _send_json(send, {"error": error}, status, headers)


class Endpoint:
    """A route as a plain ASGI application: all errors are already answers, so no wrapper is needed."""

    def __init__(
        self, gate: Gate, path: str, answer: Answer, needs: str | None, at_once: AtOnce | None
    ) -> None:
        self._gate, self._path, self._answer, self._needs = gate, path, answer, needs
        self._at_once, self._traffic = at_once, gate.monitor.traffic.route(path)

    @property
    def is_at_once(self) -> bool:
        return self._at_once is not None

    @property
    def most_at_once(self) -> int:
        """Bytes of a body that is read before it is looked at."""
        return min(AT_ONCE_BYTES, self._gate.http.max_body_bytes)

    def answer_at_once(self, scope: Scope, body: Bytes, respond: Respond) -> bool:
        """Answer without a task, once what was done is on disk; False if that is not possible."""
        assert self._at_once is not None
        start = time.perf_counter()
        value: Any
        try:
            if self._needs is not None:
                self._gate.admit(scope, self._needs)
            self._gate.check_size(len(body))
            value = self._at_once(body, scope)
            answer = _encoder.encode(value)
        except Exception as error:
            self._refuse(scope, respond, start, error)
            return True
        if value is None:
            scope[ADMITTED] = True
            return False

        def stored(error: NotStored | None) -> None:
            if error is not None:
                self._refuse(scope, respond, start, error)
                return
            self._note(scope, 200, time.perf_counter() - start)
            respond(200, answer)

        self._gate.when_stored(stored)
        return True

    def _refuse(self, scope: Scope, respond: Respond, start: float, error: Exception) -> None:
        reason, status = self._refusal(error)
        self._note(scope, status, time.perf_counter() - start)
        respond(status, _encoder.encode({"error": reason}))

    def _refusal(self, error: Exception) -> tuple[str, int]:
        """Reason and status."""
        match error:
            case FclubError():
                return str(error), status_of(error)
            case ClientDisconnect():
                return "the client went away", 400
        self._gate.monitor.fault(error)
        return FAILURE, FAILED

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        self._traffic.add(status, seconds)
        if status in REFUSED or self._gate.access.all_requests:
            self._gate.access.answered(scope, self._path, status, seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, request, status = time.perf_counter(), Request(scope, receive), 200
        value: Any
        try:
            if self._needs is not None and ADMITTED not in scope:
                self._gate.admit(scope, self._needs)
            value = await self._answer(request)
        except Exception as error:
            reason, status = self._refusal(error)
            value = {"error": reason}
        whole = value if isinstance(value, Response) else None
        if whole is not None:
            status = whole.status_code
        self._note(scope, status, time.perf_counter() - start)
        if whole is not None:
            await whole(scope, receive, send)
        else:
            await _send_json(send, value, status)


class Gate:
    """Every request passes here: who asks, how often, how much; and what is counted about it."""

    def __init__(self, http: Http, keys: Keys, monitor: Monitor, when_stored: WhenStored) -> None:
        self.http, self.keys, self.monitor, self.when_stored = http, keys, monitor, when_stored
        self.access = Access(http.access_log)
        self._buckets: dict[bytes, tuple[float, float]] = {}

    def route(self, path: str, method: str, answer: Answer, at_once: AtOnce | None = None) -> Route:
        """A route for keys of its scope in `NEEDS`; `answer` returns a JSON-ready value.

        So does `at_once`, where it can.
        """
        endpoint = Endpoint(self, path, answer, needed(method, path), at_once)
        return Route(path, endpoint, methods=[method])

    def admit(self, scope: Scope, needs: str) -> None:
        header = header_of(scope, b"authorization")
        self.keys.admit(header, needs)
        if self.http.max_requests_per_second is not None:
            self._slow_down(header, float(self.http.max_requests_per_second))

    def _slow_down(self, header: bytes, rate: float) -> None:
        """Refuse more requests of a token than one second allows, however `Bearer` is spelled."""
        now, key = time.monotonic(), header.partition(b" ")[2]
        level, last = self._buckets.get(key, (rate, now))
        level = min(rate, level + (now - last) * rate)
        if level < 1.0:
            raise TooFast(f"more than {rate:g} requests per second")
        self._buckets[key] = (level - 1.0, now)

    async def body(self, request: Request, decoder: msgspec.json.Decoder[Body]) -> Body:
        return decoded(await self.bytes_of(request), decoder)

    async def bytes_of(self, request: Request) -> bytearray:
        """The body; never reads more than the limit."""
        limit = self.http.max_body_bytes
        declared = header_of(request.scope, b"content-length")
        size = int(declared) if declared.isdigit() else 0
        data, more = bytearray(), True
        while more and size <= limit:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            data += message.get("body", b"")
            size, more = len(data), message.get("more_body", False)
        self.check_size(size)
        return data

    def check_size(self, size: int) -> None:
        if size > self.http.max_body_bytes:
            raise TooLarge(f"the body may have {self.http.max_body_bytes} bytes")


def decoded(data: Bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """The body of a request."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None
