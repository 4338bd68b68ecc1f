"""Certificates on both sides of the broker, and on the HTTP service."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

pytest.importorskip("cryptography")

from fclub.errors import InvalidSetting
from fclub.service.fleet import Server
from fclub.service.link.broker import BrokerTls, LocalBroker, free_port
from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import NatsWire, broker_of
from fclub.service.monitoring import Monitor
from fclub.service.settings import Nats

from .certificates import Authority
from .conftest import wait_for


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def broker(tmp_path: Path, authority: Authority) -> Iterator[LocalBroker]:
    own = authority.issue("broker")
    tls = BrokerTls(own.certificate, own.key, authority.path)
    found = LocalBroker(tmp_path / "nats", {"s0": "one", GLOBAL: "two"}, tls)
    found.start()
    yield found
    found.stop()


def settings(broker: LocalBroker, authority: Authority, name: str, password: str) -> Nats:
    own = authority.issue(name)
    url = f"tls://127.0.0.1:{broker.port}"
    return Nats(
        url=url,
        user=name,
        password=password,
        ca=authority.path,
        certificate=own.certificate,
        key=own.key,
    )


async def arrives(broker: LocalBroker, authority: Authority) -> list[tuple[str, bytes]]:
    got: asyncio.Future[list[tuple[str, bytes]]] = asyncio.get_running_loop().create_future()

    async def deliver(arrivals: list[tuple[str, bytes]]) -> None:
        if not got.done():
            got.set_result(arrivals)

    async def ignore(arrivals: list[tuple[str, bytes]]) -> None:
        raise AssertionError("nothing was sent down")

    hub = NatsWire(
        GLOBAL, broker_of(settings(broker, authority, GLOBAL, "two")), Monitor("hub"), ["s0"]
    )
    local = NatsWire("s0", broker_of(settings(broker, authority, "s0", "one")), Monitor("s0"))
    await hub.start(deliver, lambda: None)
    await local.start(ignore, lambda: None)
    while not got.done():
        await local.send(GLOBAL, b"frame", None)
        await asyncio.sleep(0.05)
    await local.stop()
    await hub.stop()
    return got.result()


def test_frames_cross_a_broker_with_mutual_tls(broker: LocalBroker, authority: Authority) -> None:
    arrivals = asyncio.run(asyncio.wait_for(arrives(broker, authority), 20))
    assert arrivals[0] == ("s0", b"frame")


def speak(context: ssl.SSLContext, port: int) -> bytes:
    """What the broker answers over TLS; TLS 1.3 tells of a refused certificate at the first read."""
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.recv(4096)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            secured.sendall(b"PING\r\n")
            return secured.recv(100)


@pytest.mark.parametrize("kind", ["none", "foreign"])
def test_a_client_without_our_certificate_is_refused(
    broker: LocalBroker, authority: Authority, tmp_path: Path, kind: str
) -> None:
    context = ssl.create_default_context(cafile=authority.path)
    if kind == "foreign":
        stranger = Authority(tmp_path / "foreign").issue("s0")
        context.load_cert_chain(stranger.certificate, stranger.key)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        speak(context, broker.port)


async def connects_after_renewal(broker: LocalBroker, authority: Authority, other: Authority) -> bool:
    async def ignore(arrivals: list[tuple[str, bytes]]) -> None:
        raise AssertionError("nothing was sent")

    ours, foreign = settings(broker, authority, "s0", "one"), other.issue("s0")
    theirs = msgspec.structs.replace(ours, certificate=foreign.certificate, key=foreign.key)
    monitor = Monitor("s0")
    wire = NatsWire("s0", broker_of(theirs), monitor)
    await wire.start(ignore, lambda: None)
    while monitor.registry.get_sample_value("fclub_link_failures_total") == 0:
        await asyncio.sleep(0.05)
    with pytest.raises(InvalidSetting, match="nats"):
        wire.renew(msgspec.structs.replace(ours, key="nowhere"))
    wire.renew(ours)
    while not wire.connected:
        await asyncio.sleep(0.05)
    await wire.stop()
    return True


def test_a_connection_uses_certificates_that_were_read_again(
    broker: LocalBroker, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "foreign")
    assert asyncio.run(asyncio.wait_for(connects_after_renewal(broker, authority, other), 60))


@pytest.mark.slow
def test_http_over_tls(tmp_path: Path, authority: Authority) -> None:
    own = authority.issue("shop")
    values = {
        "model__dim": 4,
        "store": str(tmp_path / "local.db"),
        "http__tls_certificate": own.certificate,
        "http__tls_key": own.key,
    }
    server = Server("local", "shop", tmp_path, values, "token", free_port())
    server.start()
    try:
        context = ssl.create_default_context(cafile=authority.path)
        url = f"https://127.0.0.1:{server.port}/healthz"
        with httpx.Client(
            verify=context, transport=httpx.HTTPTransport(verify=context, retries=8)
        ) as client:
            wait_for(lambda: msgspec.json.decode(client.get(url).content)["status"] == "ok")
    finally:
        server.stop()
