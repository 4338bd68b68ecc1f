"""HTTP/1.1 as bytes: with and without tasks, what is refused, and connections that bring nothing."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import httpx
import msgspec
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from fclub.service.http.gate import AT_ONCE_BYTES, Endpoint, Gate
from fclub.service.http.keys import KeyFile, Keys
from fclub.service.http.server import HEAD_BYTES, Application, Connection, HttpServer, Limits
from fclub.service.monitoring import Monitor
from fclub.service.serve import local_app

from .certificates import Authority
from .conftest import DIM, HTTP, LIMITS, TOKEN, Wire, local_settings, serving, wait_for


def connected(app: Application, wire: Wire, limits: Limits = LIMITS) -> Connection:
    connection = Connection(HttpServer(app, limits, Monitor("local")))
    connection.connection_made(cast(asyncio.Transport, wire))
    return connection


async def turn() -> None:
    await asyncio.sleep(0)


class Slow:
    """Half of its answer comes once somebody has seen the other."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.at_once: dict[tuple[str, str], Endpoint] = {}
        self.headers, self.seen = headers, asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await self.seen.wait()
        await send({"type": "http.response.body", "body": b"two"})


async def until(wire: Wire, writes: int) -> None:
    async with asyncio.timeout(10):
        while len(wire.sent) < writes:
            await turn()


LENGTH = (b"content-length", b"6")
STREAMS: dict[str, tuple[str, list[tuple[bytes, bytes]], bytes, bytes, bool]] = {
    "known length": ("GET / HTTP/1.1", [LENGTH], b"one", b"two", False),
    "chunked": ("GET / HTTP/1.1", [], b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n", False),
    "an old client": ("GET / HTTP/1.0", [], b"one", b"two", True),
    "head only": ("HEAD / HTTP/1.1", [LENGTH], b"", b"", False),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_head_and_body_are_one_write_and_a_stream_does_not_wait(kind: str) -> None:
    line, headers, first, second, closed = STREAMS[kind]

    async def play() -> None:
        wire, app = Wire(), Slow(*headers)
        connection = connected(app, wire)
        connection.data_received(line.encode() + b"\r\nhost: x\r\n\r\n")
        await until(wire, 1)
        assert wire.sent[0].startswith(b"HTTP/1.1 200 OK\r\ndate: ")
        head, _, body = wire.sent[0].partition(b"\r\n\r\n")
        assert body == first
        assert (b"transfer-encoding: chunked" in head) == (kind == "chunked")
        assert (b"connection: close" in head) == closed
        app.seen.set()
        if second:
            await until(wire, 2)
        for _ in range(5):
            await turn()
        assert wire.sent[1:] == ([second] if second else [])
        assert wire.closed == closed
        connection.connection_lost(ConnectionResetError())

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

    def head(self) -> tuple[int, dict[str, str]]:
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        return status, headers

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = self.head()
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
        gate = Gate(
            HTTP, Keys(KeyFile(Path("none"))), self.monitor, when_stored=lambda stored: stored(None)
        )
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
        connection = connected(app, wire)
        for number, fault in enumerate((b"fault", b"later fault")):
            connection.data_received(request(fault, "/"))
            await until(wire, number + 1)
            assert wire.sent[number].startswith(b"HTTP/1.1 500 ")
            assert wire.sent[number].endswith(b'{"error":"the server has failed"}')
        assert [event["error"] for event in app.monitor.recent] == ["KeyError", "RuntimeError"]
        assert all(event["place"].startswith("test_server.py:") for event in app.monitor.recent)
        assert "somebody" not in str(app.monitor.recent)
        connection.pause_writing()
        connection.data_received(request(b"unread", "/"))
        for _ in range(5):
            await turn()
        assert len(wire.sent) == 2, "its task waits until the client has read"
        connection.resume_writing()
        await until(wire, 3)
        assert wire.sent[2].endswith(b'"task"')
        connection.connection_lost(ConnectionResetError())

    asyncio.run(play())


REFUSED_HEADS: dict[str, tuple[bytes, int]] = {
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "two lengths": (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
    "both lengths": (
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a long line": (b"GET /" + b"x" * 2 * HEAD_BYTES, 431),
    "a long header": (b"GET / HTTP/1.1\r\nx: " + b"x" * 2 * HEAD_BYTES + b"\r\n\r\n", 431),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"a: bcd\r\n" * HEAD_BYTES, 431),
}


@pytest.mark.parametrize("what", REFUSED_HEADS)
def test_what_cannot_be_read_is_refused_and_ends_the_connection(raw: Raw, what: str) -> None:
    """After the answer to what came before."""
    data, status = REFUSED_HEADS[what]
    raw.socket.sendall(request(VISIT) + data)
    assert raw.answer()[0] == 200
    found, headers, body = raw.answer()
    assert (found, headers["connection"]) == (status, "close")
    assert json.loads(body).keys() == {"error"}


def test_other_forms_of_an_address_are_understood(raw: Raw) -> None:
    for target, status in (("http://x/healthz?a=b", 200), ("/h%65althz", 200), ("*", 404)):
        assert raw.ask(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())[0] == status


def test_an_answer_to_head_has_no_body(raw: Raw) -> None:
    raw.socket.sendall(b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n" + request(VISIT))
    status, headers = raw.head()
    assert (status, int(headers["content-length"]) > 0) == (200, True)
    assert raw.answer()[0] == 200


def test_upgrades_are_ordinary_requests_and_logged_once(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is told to install a library for another protocol."""
    upgrade = (
        b"GET /v1/live HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with caplog.at_level("DEBUG"):
        for _ in range(200):
            raw = Raw(client.base_url.port or 0)
            status, headers, _ = raw.ask(upgrade)
            assert (status, headers["connection"]) == (401, "close")
            assert raw.file.read() == b""
            raw.close()
    assert len([one for one in caplog.records if one.name.startswith("fclub")]) == 1
    told = 'fclub_http_requests_total{route="/v1/live",status="401"} 200.0'
    assert told in client.get("/metrics").text


def files(wanted: int) -> bool:
    """Whether this process may open so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted and (hard == resource.RLIM_INFINITY or wanted <= hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= wanted


@pytest.mark.parametrize("begun", [b"", b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\n"])
def test_many_half_open_connections_do_not_stop_a_server(client: httpx.Client, begun: bytes) -> None:
    """1,100 without a token, against a limit of 1,000."""
    if not files(4096):
        pytest.skip("a process may not open 4,096 files here")
    port = client.base_url.port or 0
    visit = {"user": "ann", "items": ITEMS}
    assert client.post("/v1/recommend", json=visit).status_code == 200
    sockets = []
    try:
        for _ in range(1100):
            sockets.append(socket.create_connection(("127.0.0.1", port), timeout=60))
            sockets[-1].sendall(begun)
        with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=60) as newcomer:
            assert newcomer.post("/v1/recommend", json=visit).status_code == 200
        assert client.post("/v1/recommend", json=visit).status_code == 200
        dropped = re.search(r"fclub_http_dropped_connections_total (\d+)", client.get("/metrics").text)
        assert dropped is not None
        assert 100 <= int(dropped[1]) <= 110
    finally:
        for one in sockets:
            one.close()


def test_half_open_handshakes_do_not_stop_a_server(tmp_path: Path) -> None:
    """They count before they are encrypted, and end at their deadline; so does what is no TLS."""
    authority = Authority(tmp_path / "certificates")
    own, trusted = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cafile=authority.path),
    )
    pair = authority.issue("server")
    own.load_cert_chain(pair.certificate, pair.key)
    limits = Limits(connections=20, request_seconds=0.5)
    app, _ = local_app(local_settings(tmp_path))
    with serving(app, limits, own, trusted) as client:
        port = client.base_url.port or 0
        silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(60)]
        silent[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.post("/v1/recommend", json={"user": "ann", "items": ITEMS}).status_code == 200
        assert client.post("/v1/recommend", content=b" " * 30_000).status_code == 413
        for one in silent:
            with suppress(ConnectionResetError):
                while one.recv(1024):
                    pass
            one.close()
        assert client.get("/healthz").status_code == 200


def test_deadlines_end_connections_that_bring_nothing(tmp_path: Path) -> None:
    limits = Limits(request_seconds=0.2, idle_seconds=0.4)
    with serving(local_app(local_settings(tmp_path))[0], limits) as client:
        port = client.base_url.port or 0
        idle, silent, slow = (Raw(port) for _ in range(3))
        assert idle.ask(request(VISIT))[0] == 200
        slow.socket.sendall(request(VISIT)[:-1])
        for one in (idle, silent, slow):
            assert one.file.read() == b""
            one.close()
        assert b"fclub_http_dropped_connections_total 2.0" in client.get("/metrics").content


def test_half_a_request_behind_an_answer_has_a_deadline(tmp_path: Path) -> None:
    with serving(local_app(local_settings(tmp_path))[0], Limits(request_seconds=0.2)) as client:
        raw = Raw(client.base_url.port or 0)
        assert raw.ask(request(VISIT) + request(VISIT)[:-1])[0] == 200
        assert raw.file.read() == b""
        raw.close()


def test_a_client_that_does_not_read_its_answer_has_a_deadline() -> None:
    async def play() -> None:
        wire, app = Wire(), Slow(LENGTH)
        server = HttpServer(app, Limits(request_seconds=0.01), Monitor("local"))
        await server.start([], None)
        connection = Connection(server)
        connection.connection_made(cast(asyncio.Transport, wire))
        connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(wire, 1)
        connection.pause_writing()
        async with asyncio.timeout(60):
            while not wire.closed:
                await asyncio.sleep(0.01)
        connection.connection_lost(None)
        await server.stop()

    asyncio.run(play())


def test_when_all_connections_are_busy_a_newcomer_is_turned_away() -> None:
    async def play() -> None:
        app = Slow(LENGTH)
        server = HttpServer(app, Limits(connections=1), Monitor("local"))
        wires = Wire(), Wire()
        for wire in wires:
            connection = Connection(server)
            connection.connection_made(cast(asyncio.Transport, wire))
            connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(wires[0], 1)
        assert [wire.closed for wire in wires] == [False, True]
        app.seen.set()
        await until(wires[0], 2)

    asyncio.run(play())
