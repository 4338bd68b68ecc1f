"""What a local server sends is signed by its organisation; the global server looks at nothing else.

An account at the broker can be stolen, and a broker can say anything in anybody's name. A message
begins with the Ed25519 signature of the sender's identity (`fclub identity`) over the sender's name and
all that follows. What is not signed so is counted and dropped, and is nobody's offence. Frames inside
are numbered (`channel`), so that one that is said again is not applied again. A question (`Hello`) has
no place in that order: an old one is answered anew, and what it says may be shown as trouble until the
server asks again. The federation is not signed: an identity belongs to one federation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fclub.cohorts.masks import SIGNATURE, field
from fclub.errors import NotSigned
from fclub.service.link.nats_wire import NatsWire
from fclub.service.link.wire import Arrival, Connected, Deliver
from fclub.service.settings import Nats

_PURPOSE = field(b"fclub-message-1")

Signers = Mapping[str, Sequence[str]]
"""Public keys of local servers in hexadecimal digits; two while one takes the place of another."""


def sign(secret: Ed25519PrivateKey, name: str, message: bytes) -> bytes:
    return secret.sign(_signed(name, message)) + message


def open_signed(publics: Sequence[Ed25519PublicKey], name: str, data: bytes) -> bytes:
    """The message that one of these keys has signed for that name, or `NotSigned`."""
    signature, message = data[:SIGNATURE], data[SIGNATURE:]
    for public in publics:
        try:
            public.verify(signature, _signed(name, message))
        except InvalidSignature:
            continue
        return message
    raise NotSigned(
        f"a message in the name of {name} is not signed with its key: expected the identity whose "
        "public half the global server has (signers); compare them with its operator"
    )


def _signed(name: str, message: bytes) -> bytes:
    return _PURPOSE + field(name.encode()) + message


class SignedWire:
    """A wire to the broker; a local server has a `secret`, the global server knows `signers`."""

    def __init__(self, wire: NatsWire, secret: bytes | None = None, signers: Signers | None = None):
        self._wire = wire
        self._secret = None if secret is None else Ed25519PrivateKey.from_private_bytes(secret)
        self._signers = _public(signers or {})

    @property
    def connected(self) -> bool:
        return self._wire.connected

    async def start(self, deliver: Deliver, connected: Connected) -> None:
        async def opened(arrivals: list[Arrival]) -> None:
            sound = [one for arrival in arrivals for one in self._open(*arrival)]
            if sound:
                await deliver(sound)

        await self._wire.start(deliver if self._secret is not None else opened, connected)

    def _open(self, sender: str, data: bytes) -> list[Arrival]:
        try:
            return [(sender, open_signed(self._signers.get(sender, ()), sender, data))]
        except NotSigned as error:
            self._wire.monitor.refused(sender, error)
            return []

    async def send(self, peer: str, frame: bytes, message_id: str | None) -> None:
        if self._secret is not None:
            frame = sign(self._secret, self._wire.name, frame)
        await self._wire.send(peer, frame, message_id)

    def follow(self, servers: Sequence[str], gone: Sequence[str], signers: Signers) -> None:
        """The global server's: these local servers take part, with these keys; those have left."""
        self._signers = _public(signers)
        self._wire.follow(servers, gone)

    def renew(self, settings: Nats) -> None:
        self._wire.renew(settings)

    async def stop(self) -> None:
        await self._wire.stop()


def _public(signers: Signers) -> dict[str, list[Ed25519PublicKey]]:
    return {
        name: [Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)) for key in keys]
        for name, keys in signers.items()
    }
