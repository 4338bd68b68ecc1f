"""What the hub and members say to each other in a slot, and how it is written."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from fclub.cohorts.masks import SignedKey
from fclub.errors import InvalidMessage


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Call(_Message, frozen=True, tag="call"):
    """The hub begins an attempt at a slot."""

    period: int
    slot: int
    version: int
    nonce: bytes


class Join(_Message, frozen=True, tag="join"):
    """A member takes part. Nothing in it follows from its users."""

    name: str
    key: bytes
    signature: bytes

    @property
    def signed(self) -> SignedKey:
        return SignedKey(self.name, self.key, self.signature)


class Roster(_Message, frozen=True, tag="roster"):
    """All Joins, by ascending names."""

    joins: tuple[SignedKey, ...]


class Ready(_Message, frozen=True, tag="ready"):
    roster: bytes


class Go(_Message, frozen=True, tag="go"):
    roster: bytes


class Masked(_Message, frozen=True, tag="masked"):
    """Y, as little-endian numbers of 64 bits."""

    roster: bytes
    values: bytes


class Abort(_Message, frozen=True, tag="abort"):
    """An attempt is over without a sum; before Roster its hash is empty."""

    roster: bytes


class Summed(_Message, frozen=True, tag="summed"):
    roster: bytes


Message = Call | Join | Roster | Ready | Go | Masked | Abort | Summed

_DECODER = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> Message:
    try:
        message: Message = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidMessage(
            f"expected a message of a secure sum, got something else: {error}"
        ) from None
    return message


class Outgoing(NamedTuple):
    """A message to one member, or to the hub where `to` is empty, that leaves at this time or later."""

    to: str
    message: Message
    due: float = 0.0


class Step(NamedTuple):
    """What follows from an event: `change` is stored as a whole before any message leaves.

    If it cannot be stored the process ends, and with it what it has in memory.
    """

    change: Any = None
    messages: tuple[Outgoing, ...] = ()
