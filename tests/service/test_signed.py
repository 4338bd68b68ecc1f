"""Only what an organisation's key has signed is its word, and its offence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fclub.cohorts.members import Identity, make_identity, write_identity
from fclub.errors import InvalidFile, InvalidSetting, NotSigned
from fclub.service.link.broker import LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import Broker, NatsWire
from fclub.service.link.signed import SignedWire, open_signed, sign
from fclub.service.link.wire import Arrival
from fclub.service.monitoring import Monitor
from fclub.service.serve import local_app
from fclub.service.settings import LocalSettings, Model, Nats, Secure

NORTH, EAST = make_identity("north", "North Ltd"), make_identity("east", "East Ltd")
WORDS = b"some bytes"


def private(identity: Identity) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(identity.secret)


def public(*identities: Identity) -> list[Ed25519PublicKey]:
    return [private(one).public_key() for one in identities]


def test_what_a_key_has_signed_for_a_name_is_its_word() -> None:
    data = sign(private(NORTH), "north", WORDS)
    assert open_signed(public(NORTH), "north", data) == WORDS
    assert open_signed(public(EAST, NORTH), "north", data) == WORDS


FORGED = {
    "another key": sign(private(EAST), "north", WORDS),
    "another name": sign(private(NORTH), "east", WORDS),
    "other words": sign(private(NORTH), "north", WORDS)[:-1] + b"?",
    "another signature": b"?" + sign(private(NORTH), "north", WORDS)[1:],
    "no signature": WORDS,
    "nothing": b"",
}


@pytest.mark.parametrize("what", FORGED)
def test_anything_else_is_nobodys(what: str) -> None:
    with pytest.raises(NotSigned, match="in the name of north"):
        open_signed(public(NORTH), "north", FORGED[what])
    with pytest.raises(NotSigned):
        open_signed([], "north", FORGED[what])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    found = LocalBroker(tmp_path / "nats", {"north": "one", GLOBAL: "two"})
    found.start()
    yield found
    found.stop()


def test_whoever_has_only_the_account_is_not_heard(broker: LocalBroker) -> None:
    """A thief of the account says what he likes: it is counted, and no node gets to see it."""
    heard: list[Arrival] = []
    monitor = Monitor("hub")

    async def hear(arrivals: list[Arrival]) -> None:
        heard.extend(arrivals)

    async def run() -> None:
        def wire(name: str, password: str) -> NatsWire:
            servers = ["north"] if name == GLOBAL else None
            found = Monitor("north") if name == "north" else monitor
            return NatsWire(name, Broker(broker.url, name, password), found, servers)

        hub = SignedWire(wire(GLOBAL, "two"), signers={"north": [NORTH.entry.key]})
        own, thief = SignedWire(wire("north", "one"), NORTH.secret), wire("north", "one")
        ends = (hub, own, thief)
        for end in ends:
            await end.start(hear, lambda: None)
        while not heard:
            await own.send(GLOBAL, b"first", None)
            await asyncio.sleep(0.05)
        for _ in range(6):
            await thief.send(GLOBAL, b"forged", None)
        while (GLOBAL, b"down") not in heard:
            await hub.send("north", b"down", None)
            await own.send(GLOBAL, b"last", None)
            await asyncio.sleep(0.05)
        for end in ends:
            await end.stop()

    asyncio.run(run())
    said = {data for sender, data in heard if sender == "north"}
    assert said <= {b"first", b"last"}
    assert monitor.refusals.labels("north", "NotSigned")._value.get() == 6


def settings(path: Path, identity: str = "") -> LocalSettings:
    return LocalSettings(
        model=Model(dim=2),
        name="north",
        store=str(path / "north.db"),
        nats=Nats(url="nats://127.0.0.1:1"),
        secure=Secure(identity=identity),
    )


def test_a_server_that_cannot_sign_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="fclub identity FILE --name north"):
        local_app(settings(tmp_path))
    write_identity(EAST, tmp_path / "east")
    with pytest.raises(InvalidSetting, match="expected the key of north, got that of east"):
        local_app(settings(tmp_path, str(tmp_path / "east")))
    (tmp_path / "east").chmod(0o644)
    with pytest.raises(InvalidFile, match="can be read by others"):
        local_app(settings(tmp_path, str(tmp_path / "east")))
    assert not (tmp_path / "north.db").exists()
