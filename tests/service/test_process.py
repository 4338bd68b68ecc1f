"""A server as a process: what it says when it cannot start, its log, and what SIGHUP changes."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("cryptography")

from fclub import Client
from fclub.cohorts.members import make_identity, write_identity
from fclub.service.fleet import Server
from fclub.service.http.keys import METRICS, KeyFile, keys_of
from fclub.service.kits.folder import Folder
from fclub.service.link.broker import free_port
from fclub.service.settings import Model

from .certificates import Authority, Pair
from .conftest import fclub, wait_for

pytestmark = pytest.mark.slow


def busy(tmp_path: Path) -> list[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    KEPT.append(listener)
    return ["--port", str(listener.getsockname()[1])]


KEPT: list[socket.socket] = []
"""Listeners that have to stay open."""


def beside(name: str, *more: str) -> Callable[[Path], list[str]]:
    def words(tmp_path: Path) -> list[str]:
        (tmp_path / "file").write_text("no folder")
        return [name, *(word.replace("HERE", str(tmp_path)) for word in more)]

    return words


CASES = {
    "busy port": (busy, "http.port: cannot listen on 127.0.0.1:", 2),
    "unknown host": (beside("--host", "256.0.0.1"), "http.port: cannot listen on 256.0.0.1:8100", 2),
    "mistyped folder": (beside("--store", "HERE/shpo/s.db"), "store: there is no folder", 2),
    "unwritable folder": (beside("--store", "/proc/s.db"), "/proc/s.db: No such file", 1),
    "a file as folder": (beside("--store", "HERE/file/s.db"), "store: there is no folder", 2),
    "wrong log": (beside("--set", "log_format=jsno"), "log_format", 2),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("style", ["console", "json"])
def test_what_keeps_a_server_from_starting_is_one_line(tmp_path: Path, case: str, style: str) -> None:
    words, told, code = CASES[case]
    options = ["local", "--store", str(tmp_path / "s.db"), "--dim", "2", *words(tmp_path)]
    process = fclub(*options, env=os.environ | {"FCLUB_LOG_FORMAT": style})
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (code, "")
    (line,) = errors.splitlines()
    if style == "json" and case != "wrong log":
        line = json.loads(line)["message"]
    assert told in line
    assert not (tmp_path / "shpo").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dir", "/proc/nowhere"], "/proc/nowhere: No such file or directory"),
        (["--dir", "HERE/a/b"], "HERE/a/b: No such file or directory"),
        (["--set", "env.dim=1.5"], "env.dim must be a whole number"),
        (["--set", "env.kind=5"], "env.kind must be authors or orthogonal"),
        (["--set", "env.newcomers=[1]"], "env.newcomers must be a number"),
    ],
)
def test_what_keeps_a_federation_from_starting_is_one_line(
    tmp_path: Path, words: list[str], told: str
) -> None:
    process = fclub("up", "--visits", "1", *(word.replace("HERE", str(tmp_path)) for word in words))
    _, errors = process.communicate(timeout=120)
    (line,) = errors.splitlines()
    assert line.startswith("fclub: ")
    assert told.replace("HERE", str(tmp_path)) in line
    assert process.returncode in (1, 2)


class Running:
    """`fclub local` on a settings file, speaking HTTPS on any free port; its log is JSON."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.file, self.log, self.authority = folder / "local.toml", folder / "log", authority
        self.store = folder / "local.db"

    def write(self, pair: Pair, extra: str = "") -> None:
        self.file.write_text(
            f'store = "{self.store}"\nlog_format = "json"\n{extra}\n[model]\ndim = 2\n'
            "[http]\nport = 0\n"
            f'tls_certificate = "{pair.certificate}"\ntls_key = "{pair.key}"\n'
        )

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as output:
            command = [sys.executable, "-m", "fclub", "local", "--config", str(self.file)]
            return subprocess.Popen(command, stdout=output, stderr=output)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def said(self, text: str) -> int:
        return sum(line["message"] == text for line in self.lines())

    @property
    def port(self) -> int:
        (line,) = [one for one in self.lines() if one["message"] == "listening"]
        return int(line["address"].rpartition(":")[2])

    def status(self, token: str) -> int:
        context = ssl.create_default_context(cafile=self.authority.path)
        with httpx.Client(verify=context, headers={"Authorization": f"Bearer {token}"}) as client:
            return client.get(f"https://127.0.0.1:{self.port}/v1/link").status_code

    def certificate(self) -> str:
        context = ssl.create_default_context(cafile=self.authority.path)
        with (
            socket.create_connection(("127.0.0.1", self.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            found = secured.getpeercert()
            assert found is not None
            return str(found["subject"])


def test_keys_and_certificates_are_read_again_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    server = Running(tmp_path, authority)
    server.write(authority.issue("one"))
    keys = KeyFile(keys_of(server.store))
    process = server.start()
    try:
        wait_for(lambda: server.said("listening") == 1)
        wait_for(lambda: any("nobody has a key yet" in line["message"] for line in server.lines()))
        keys.add("shop", [METRICS], token="first")
        wait_for(lambda: server.status("first") == 200)
        assert server.status("second") == 401
        assert "one" in server.certificate()
        server.write(authority.issue("two"), "resend_seconds = 2.0")
        keys.add("shop", [METRICS], token="second")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.said("settings that need a restart") == 1)
        assert (server.status("first"), server.status("second")) == (401, 200)
        assert "two" in server.certificate()
        assert [line["keys"] for line in server.lines() if "keys" in line] == [["resend_seconds"]]
        server.write(Pair(authority.issue("three").certificate, "nowhere"))
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.said("settings not read again") == 1)
        keys.revoke("shop")
        wait_for(lambda: server.status("second") == 401)
        assert "two" in server.certificate(), "half a pair changes nothing"
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert server.lines()[0]["level"] == "info", "JSON from the first line to the last"


def test_a_kit_that_cannot_be_read_again_changes_nothing(tmp_path: Path) -> None:
    folder = Folder.make(tmp_path / "fed", "shops", Model(dim=2), "127.0.0.1", free_port())
    identity = make_identity("north", "North Ltd")
    write_identity(identity, tmp_path / "north.key")
    folder.add("north", identity.entry)
    kit, log = folder.kit_of("north"), tmp_path / "log"
    text = kit.read_bytes()
    words = ["--kit", str(kit), "--identity", str(tmp_path / "north.key"), "--port", "0"]
    with log.open("wb") as output:
        words += ["--store", str(tmp_path / "north.db")]
        process = subprocess.Popen([sys.executable, "-m", "fclub", "local", *words], stderr=output)
    try:
        wait_for(lambda: "listening" in log.read_text())
        kit.write_text("damaged")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "settings not read again" in log.read_text())
        kit.write_bytes(text)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "keys and certificates read again" in log.read_text())
        assert "Traceback" not in log.read_text()
    finally:
        process.terminate()
        assert process.wait(60) == 0


@pytest.fixture
def few_files() -> Iterator[int]:
    """Processes that are started now have a soft limit of 1,024 open files; the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("a process may not open 4,096 files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_half_open_connections_do_not_stop_a_server(tmp_path: Path, few_files: int) -> None:
    """1,100 without a token, half of which have begun a request."""
    values = {"model__dim": 2, "store": str(tmp_path / "local.db")}
    server = Server("local", "local", tmp_path, values, "token")
    server.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, few_files))
    opened = []
    try:
        server.wait_until_ready()
        for number in range(1100):
            opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            opened[-1].sendall(b"POST /v1/recommend HTTP/1.1\r\n" * (number % 2))
        for _ in range(3):
            with Client(server.url, "token", retries=0) as client:
                shown = client.recommend("ann", {"tea": [0.6, 0.8]})
                assert client.feedback(shown.decision, 1.0)
    finally:
        for one in opened:
            one.close()
        server.stop()
