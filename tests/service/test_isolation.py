"""A member that attacks the federation with its own account at a real broker harms nobody else."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from fclub.service.link.broker import MEMBER_LIMITS, BrokerTls, LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import Broker, NatsWire
from fclub.service.link.streams import MOST_WAITING, UP_STREAM, down_stream
from fclub.service.monitoring import Monitor

from .certificates import Authority

pytestmark = pytest.mark.slow

PASSWORDS = {"north": "secret-north", "east": "secret-east", GLOBAL: "secret-global"}
HANGS = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    found = LocalBroker(tmp_path / "nats", PASSWORDS)
    found.start()
    yield found
    found.stop()


async def login(broker: LocalBroker, name: str, **more: Any) -> Client:
    async def ignore(error: Exception) -> None:
        """Refusals are what is expected."""

    return await nats.connect(
        broker.url,
        user=name,
        password=PASSWORDS[name],
        inbox_prefix=f"_INBOX_{name}".encode(),
        error_cb=ignore,
        allow_reconnect=False,
        **more,
    )


class Federation:
    """The global server and two members; `heard` is what the global server believes who has said."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.heard: list[tuple[str, bytes]] = []
        self.told: dict[str, list[bytes]] = {"north": [], "east": []}
        self.hub = self._wire(GLOBAL, ["north", "east"])
        self.members = {name: self._wire(name) for name in self.told}

    def _wire(self, name: str, servers: list[str] | None = None) -> NatsWire:
        where = Broker(self.broker.url, name, PASSWORDS[name])
        return NatsWire(name, where, Monitor(name), servers)

    async def __aenter__(self) -> Federation:
        async def hear(arrivals: list[tuple[str, bytes]]) -> None:
            self.heard += arrivals

        def listener(name: str) -> Callable[[list[tuple[str, bytes]]], Awaitable[None]]:
            async def hear_down(arrivals: list[tuple[str, bytes]]) -> None:
                self.told[name] += [data for _, data in arrivals]

            return hear_down

        await self.hub.start(hear, lambda: None)
        for name, wire in self.members.items():
            await wire.start(listener(name), lambda: None)
        await self.works(b"before")
        return self

    async def __aexit__(self, *error: object) -> None:
        for wire in (*self.members.values(), self.hub):
            await wire.stop()

    async def works(self, word: bytes) -> None:
        """East says something and is told something; it gets there, and nothing else in its name."""
        while ("east", word) not in self.heard:
            await self.members["east"].send(GLOBAL, word, word.decode())
            await asyncio.sleep(0.1)
        while word not in self.told["east"]:
            await self.hub.send("east", word, word.decode())
            await asyncio.sleep(0.1)
        assert {data for name, data in self.heard if name == "east"} <= {b"before", b"after"}
        assert set(self.told["east"]) <= {b"before", b"after"}


Attack = Callable[[Federation, Client], Awaitable[None]]


async def settle(client: Client) -> None:
    """Everything that was said has been heard; the broker may have ended the connection for it."""
    with suppress(NatsError, OSError, TimeoutError):
        await client.flush(timeout=5)
    await asyncio.sleep(0.3)


async def read(federation: Federation, client: Client) -> None:
    """Listens to everything, and has another's messages handed out."""
    caught: list[bytes] = []

    async def catch(message: Any) -> None:
        caught.append(message.data)

    for subject in (">", "fclub.>", "fclub.up.east", "fclub.down.east", "_INBOX_east.>", "$JS.>"):
        await client.subscribe(subject, cb=catch)
    inbox = client.new_inbox()
    await client.subscribe(inbox, cb=catch)
    for stream, consumer in ((UP_STREAM, GLOBAL), (down_stream("east"), "east")):
        pull = json.dumps({"batch": 10, "expires": 10**9}).encode()
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", pull, reply=inbox)
        await client.publish(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq": 1}', reply=inbox)
    await federation.members["east"].send(GLOBAL, b"after", "read")
    await federation.hub.send("east", b"after", "read")
    await settle(client)
    assert not {b"before", b"after"} & set(caught)


async def speak(federation: Federation, client: Client) -> None:
    for subject in ("fclub.up.east", "fclub.down.east", "fclub.down.north"):
        await client.publish(subject, b"forged")
    await settle(client)
    assert b"forged" not in federation.told["north"]


async def replies(federation: Federation, client: Client) -> None:
    """JetStream answers where it is asked to: as another, to another, and to itself."""
    own = down_stream("north")
    subjects = ["fclub.up.east", "fclub.down.east", "_INBOX_east.x", "_INBOX_global.x"]
    calls = [f"$JS.API.STREAM.{call}.{UP_STREAM}" for call in ("DELETE", "PURGE")]
    calls += [f"$JS.API.STREAM.DELETE.{down_stream('east')}"]
    calls += [f"$JS.API.CONSUMER.DELETE.{UP_STREAM}.{GLOBAL}"]
    for number, subject in enumerate(subjects + calls):
        await federation.hub.send("north", b"forged", f"bait-{number}")
        pull = json.dumps({"batch": 5, "expires": 3 * 10**8}).encode()
        for _ in range(5):
            await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{own}.north", pull, reply=subject)
            await client.publish("fclub.up.north", b"own", reply=subject)
    await asyncio.sleep(0.3)
    await settle(client)


async def delete(federation: Federation, client: Client) -> None:
    for stream in (UP_STREAM, down_stream("east"), down_stream("north")):
        for call in ("DELETE", "PURGE", "UPDATE"):
            await client.publish(f"$JS.API.STREAM.{call}.{stream}", b"{}")
        for name in (GLOBAL, "east"):
            await client.publish(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"")
            await client.publish(f"$JS.ACK.{stream}.{name}.1.1.1.1.1", b"+TERM")
    await settle(client)


async def exhaust_connections(federation: Federation, client: Client) -> None:
    connect = json.dumps({"user": "north", "pass": PASSWORDS["north"], "verbose": False})

    def welcomed() -> int:
        opened = [socket.create_connection(("127.0.0.1", federation.broker.port)) for _ in range(40)]
        found = 0
        for one in opened:
            one.sendall(f"CONNECT {connect}\r\nPING\r\n".encode())
            heard = b""
            while not heard.endswith(b"PONG\r\n") and b"-ERR" not in heard:
                heard += one.recv(4096)
            found += heard.endswith(b"PONG\r\n")
        for one in opened:
            one.close()
        return found

    assert await asyncio.to_thread(welcomed) < MEMBER_LIMITS["max_connections"]


async def exhaust_storage(federation: Federation, client: Client) -> None:
    """While nobody takes messages; every member has a part of the stream that is its own."""
    await federation.hub.stop()
    for _ in range(MOST_WAITING + 500):
        await client.publish("fclub.up.north", b"flood")
    await settle(client)
    await federation.members["east"].send(GLOBAL, b"after", "stored")
    federation.hub = federation._wire(GLOBAL, ["north", "east"])

    async def hear(arrivals: list[tuple[str, bytes]]) -> None:
        federation.heard += arrivals

    await federation.hub.start(hear, lambda: None)
    async with asyncio.timeout(HANGS):
        while ("east", b"after") not in federation.heard:
            await asyncio.sleep(0.05)
    assert federation.heard.count(("north", b"flood")) <= MOST_WAITING


async def exhaust_consumers(federation: Federation, client: Client) -> None:
    """Consumers, streams and waiting pulls without number."""
    own = down_stream("north")
    for number in range(200):
        await client.publish(f"$JS.API.CONSUMER.CREATE.{own}.more-{number}", b"{}")
        await client.publish(f"$JS.API.STREAM.CREATE.MORE{number}", b"{}")
        pull = json.dumps({"batch": 1, "expires": 5 * 10**9}).encode()
        reply = client.new_inbox()
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{own}.north", pull, reply=reply)
    await settle(client)


ATTACKS: list[Attack] = [
    read,
    speak,
    replies,
    delete,
    exhaust_connections,
    exhaust_storage,
    exhaust_consumers,
]


async def attacked(broker: LocalBroker, attack: Attack) -> None:
    async with asyncio.timeout(2 * HANGS), Federation(broker) as federation:
        client = await login(broker, "north")
        await attack(federation, client)
        await federation.works(b"after")
        with suppress(NatsError, OSError):
            await client.close()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_member_harms_nobody_but_itself(broker: LocalBroker, attack: Attack) -> None:
    asyncio.run(attacked(broker, attack))


def test_too_large_a_message_ends_the_connection_of_its_sender(broker: LocalBroker) -> None:
    connect = json.dumps({"user": "north", "pass": PASSWORDS["north"], "verbose": False})
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        connection.sendall(f"CONNECT {connect}\r\nPUB fclub.up.north {1 << 30}\r\n".encode())
        connection.sendall(b"PING\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"PONG" not in answer


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def answers(port: int, context: ssl.SSLContext, login: dict[str, str], *lines: str) -> list[str]:
    """What the broker says over TLS to a client that claims this."""
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.recv(4096)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            said = [f"CONNECT {json.dumps(login | {'verbose': False})}", *lines, "PING", ""]
            secured.sendall("\r\n".join(said).encode())
            heard = b""
            while not heard.endswith(b"PONG\r\n"):
                some = secured.recv(4096)
                if not some:
                    break
                heard += some
    return heard.decode().splitlines()


def test_a_certificate_says_who_its_owner_is_whatever_else_it_claims(
    tmp_path: Path, authority: Authority
) -> None:
    own = authority.issue("broker")
    tls = BrokerTls(own.certificate, own.key, authority.path)
    broker = LocalBroker(tmp_path / "nats", PASSWORDS, tls)
    broker.start()
    try:
        context = ssl.create_default_context(cafile=authority.path)
        pair = authority.issue("north")
        context.load_cert_chain(pair.certificate, pair.key)
        mine, theirs = "PUB fclub.up.north 1\r\nx", "PUB fclub.up.east 1\r\nx"
        for name in ("north", "east", "CN=east", ""):
            own_password = {"user": name, "pass": PASSWORDS["north"]}
            assert answers(broker.port, context, own_password, mine) == ["PONG"]
            refused, pong = answers(broker.port, context, own_password, theirs)
            assert "Permissions Violation" in refused
            assert pong == "PONG"
            claims = {"user": name, "pass": PASSWORDS["east"]}
            assert "Authorization Violation" in " ".join(answers(broker.port, context, claims, mine))
        stranger = authority.issue("nobody")
        context.load_cert_chain(stranger.certificate, stranger.key)
        assert "Authorization Violation" in " ".join(answers(broker.port, context, claims, mine))
    finally:
        broker.stop()
