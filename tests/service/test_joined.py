"""Requests that are answered without a task, and answers that leave in one piece."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import msgspec
import pytest
import uvicorn
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from fclub.service.http.gate import AT_ONCE_BYTES, Endpoint, Gate, Guard
from fclub.service.http.joined import Joined, JoinedProtocol
from fclub.service.monitoring import Monitor
from fclub.service.serve import local_app

from .conftest import DIM, HTTP, TOKEN, Wire, local_settings, serving, wait_for


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
        assert not wire.reading
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


def request(body: bytes, path: str = "/v1/recommend", token: str = TOKEN, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{more}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def in_a_task(body: bytes, path: str = "/v1/recommend", token: str = TOKEN) -> bytes:
    """The same from a client that would wait for a word to go on: such requests get a task."""
    return request(body, path, token, "expect: 100-continue\r\n")


def chunked(body: bytes) -> bytes:
    """The same in portions."""
    head, _, _ = request(body).partition(b"content-length")
    return head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


class Raw:
    """A connection of which a test sees the bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.file = self.socket.makefile("rb")

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        return status, headers, self.file.read(int(headers.get("content-length", 0)))

    def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.socket.sendall(data)
        found = self.answer()
        return self.answer() if found[0] == 100 else found

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def raw(client: httpx.Client) -> Iterator[Raw]:
    raw = Raw(client.base_url.port or 0)
    yield raw
    raw.close()


ITEMS = [{"id": "a", "features": [0.5] * DIM}, {"id": "b", "features": [0.1] * DIM}]
VISIT = json.dumps({"user": "ann", "items": ITEMS}).encode()
REFUSED: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", TOKEN),
    "another type": (b"[]", TOKEN),
    "an unknown field": (b'{"user": "ann", "what": 1}', TOKEN),
    "no item": (b'{"user": "ann", "items": []}', TOKEN),
    "too many features": (b'{"user": "ann", "items": [{"id": "a", "features": [1, 2]}]}', TOKEN),
    "a wrong token": (VISIT, "wrong"),
    "nothing": (b"", TOKEN),
    "too long": (b" " * 30_000 + VISIT, TOKEN),
}


@pytest.mark.parametrize("what", REFUSED)
def test_with_and_without_a_task_the_same_is_refused(raw: Raw, what: str) -> None:
    body, token = REFUSED[what]
    status, headers, error = raw.ask(request(body, token=token))
    other, others, same = raw.ask(in_a_task(body, token=token))
    assert (status, error) == (other, same)
    assert 400 <= status < 500
    ignored = {"date"}
    assert headers.keys() - ignored == others.keys() - ignored


def test_with_and_without_a_task_the_same_is_answered(raw: Raw) -> None:
    for ask in (request, in_a_task):
        status, headers, body = raw.ask(ask(VISIT))
        assert (status, headers["content-type"]) == (200, "application/json")
        assert headers["date"]
        shown = json.loads(body)
        assert shown.keys() == {"decision", "item", "index"}
        told = json.dumps({"decision": shown["decision"], "reward": 1.0}).encode()
        for counted in (True, False):
            status, _, body = raw.ask(ask(told, "/v1/feedback"))
            assert (status, json.loads(body)) == (200, {"counted": counted})


def test_requests_that_come_together_are_answered_in_order(raw: Raw, client: httpx.Client) -> None:
    """Some with a task and some without, in one packet and byte by byte."""
    unknown = json.dumps({"decision": "00", "reward": 1.0}).encode()
    asked = [
        request(VISIT),
        request(unknown, "/v1/feedback"),
        chunked(VISIT),
        request(b"{"),
        request(VISIT),
    ]
    raw.socket.sendall(b"".join(asked))
    assert [raw.answer()[0] for _ in asked] == [200, 404, 200, 400, 200]
    for byte in b"".join(asked[:2]):
        raw.socket.sendall(bytes([byte]))
    assert [raw.answer()[0] for _ in range(2)] == [200, 404]
    assert client.get("/v1/users/ann").json()["observations"] == 0


def test_a_long_row_of_refusals_is_answered_one_after_another(raw: Raw) -> None:
    """Behind a request that waits for the disk; none may be answered within the answer of another."""
    unknown = request(json.dumps({"decision": "00", "reward": 1.0}).encode(), "/v1/feedback")
    raw.socket.sendall(request(VISIT) + unknown * 2000 + request(VISIT))
    assert [raw.answer()[0] for _ in range(2002)] == [200, *[404] * 2000, 200]


def test_a_catalogue_is_searched_in_a_task(raw: Raw, client: httpx.Client) -> None:
    """What cannot be answered at once passes the gate once, and is counted once."""
    client.put("/v1/items", json={"items": ITEMS})
    status, _, body = raw.ask(request(b'{"user": "ann", "count": 2}'))
    assert status == 200
    assert len(json.loads(body)["shown"]) == 2
    told = 'fclub_http_requests_total{route="/v1/recommend",status="200"} 1.0'
    assert told in client.get("/metrics").text


def test_a_client_that_wants_no_more_is_let_go(raw: Raw) -> None:
    status, headers, _ = raw.ask(request(VISIT, more="connection: close\r\n"))
    assert (status, headers["connection"]) == (200, "close")
    assert raw.file.read() == b""


def test_a_client_that_asks_first_is_told_to_go_on(raw: Raw) -> None:
    head, _, body = request(VISIT, more="expect: 100-continue\r\n").partition(b"\r\n\r\n")
    raw.socket.sendall(head + b"\r\n\r\n")
    assert raw.answer()[0] == 100
    raw.socket.sendall(body)
    assert raw.answer()[0] == 200


def test_who_goes_away_before_the_answer_disturbs_nobody(raw: Raw, client: httpx.Client) -> None:
    for data in (request(VISIT), request(VISIT)[:-5], request(VISIT) * 3):
        gone = Raw(client.base_url.port or 0)
        gone.socket.sendall(data)
        gone.close()
    assert raw.ask(request(VISIT))[0] == 200
    wait_for(lambda: client.get("/v1/users/ann").status_code == 200)


def test_a_long_body_is_read_as_it_comes(tmp_path: Path) -> None:
    limit = 4 * AT_ONCE_BYTES
    settings = local_settings(tmp_path, http=msgspec.structs.replace(HTTP, max_body_bytes=limit))
    with serving(local_app(settings)[0]) as client:
        raw = Raw(client.base_url.port or 0)
        assert raw.ask(request(b" " * 2 * AT_ONCE_BYTES + VISIT))[0] == 200
        assert raw.ask(request(b" " * 5 * AT_ONCE_BYTES + VISIT))[0] == 413
        raw.close()


class App:
    """With one route that fails, and leaves what comes later to tasks."""

    def __init__(self) -> None:
        self.monitor = Monitor("local")
        gate = Gate(HTTP, Guard(HTTP), self.monitor, when_stored=lambda stored: stored(None))
        self.at_once = {("POST", "/"): Endpoint(gate, "/", self.answer, None, self.fail)}

    async def answer(self, request: Request) -> str:
        if await request.body() == b"later fault":
            raise RuntimeError("somebody's name")
        return "task"

    def fail(self, body: bytes | bytearray, scope: Scope) -> None:
        if not body.startswith(b"later"):
            raise KeyError("somebody's name")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.at_once["POST", "/"](scope, receive, send)


def test_a_fault_is_an_answer_and_slow_readers_get_tasks() -> None:
    async def play() -> None:
        wire, app = Wire(), App()
        config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
        config.load()
        protocol = JoinedProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        protocol.connection_made(cast(asyncio.Transport, wire))
        for number, fault in enumerate((b"fault", b"later fault")):
            protocol.data_received(request(fault, "/"))
            await until(wire, number + 1)
            assert wire.sent[number].startswith(b"HTTP/1.1 500 ")
            assert wire.sent[number].endswith(b'{"error":"the server has failed"}')
        assert [event["error"] for event in app.monitor.recent] == ["KeyError", "RuntimeError"]
        assert all(event["place"].startswith("test_joined.py:") for event in app.monitor.recent)
        assert "somebody" not in str(app.monitor.recent)
        protocol.pause_writing()
        protocol.data_received(request(b"unread", "/"))
        for _ in range(5):
            await turn()
        assert len(wire.sent) == 2, "its task waits until the client has read"
        protocol.resume_writing()
        await until(wire, 3)
        assert wire.sent[2].endswith(b'"task"')
        protocol.connection_lost(ConnectionResetError())

    asyncio.run(play())


def test_requests_for_another_protocol_are_logged_once(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """They are ordinary requests without a token; nobody is told to install a library."""
    upgrade = (
        b"GET /v1/live HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with caplog.at_level("DEBUG"):
        for data, status in [(upgrade, 401)] * 200 + [(b"no HTTP\r\n\r\n", 400)] * 20:
            raw = Raw(client.base_url.port or 0)
            assert raw.ask(data)[0] == status
            raw.close()
    lines = [one for one in caplog.records if one.name.startswith(("fclub", "uvicorn"))]
    assert [one.getMessage() for one in lines if one.levelname in ("WARNING", "ERROR")] == ["refused"]
    told = 'fclub_http_requests_total{route="/v1/live",status="401"} 200.0'
    assert told in client.get("/metrics").text
