"""What crosses the wire: numbered messages, receipts, and the frames by which two stores agree.

The version and the sender's name are the first things in every frame. So peers of another version are
told apart by name, and a frame on a foreign subject is noticed even without a broker's rules.
"""

from __future__ import annotations

import msgspec

from fclub.errors import InvalidMessage, OtherVersion

GLOBAL = "global"
"""What the global server is called on the wire."""

VERSION = 2
MAX_FRAME = 1 << 26
"""Bytes of the largest frame that is looked at: a report of 100,000 clusters in dimension 10."""

LARGEST = 1 << 62


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What one side knows of the session with the other.

    `incarnation` is made with a store, `marked` tells that the store was restored from a backup.
    `chains` are the values of the chain of its own frames at the numbers from `confirmed` to `sent`,
    `heard` the value of the other's at `received`. `used` is the highest phase or slot that it knows
    to be used. Only the global server says `superseded`: of the incarnation that it answers.
    """

    incarnation: bytes
    marked: bool
    ordinal: int
    session: bytes
    sent: int
    confirmed: int
    received: int
    chains: tuple[bytes, ...]
    heard: bytes
    used: int = 0
    superseded: bool = False


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """A new session, its reasons, and the incarnation that the local store has in it."""

    ordinal: int
    session: bytes
    incarnation: bytes
    local_new: bool
    local_old: bool
    global_lost: bool
    used: int


class Numbered(msgspec.Struct, frozen=True, array_like=True, tag="message"):
    """Message number `sequence` (1, 2, …) of a session from this sender to this receiver."""

    version: int
    sender: str
    session: bytes
    sequence: int
    payload: bytes


class Receipt(msgspec.Struct, frozen=True, array_like=True, tag="receipt"):
    """All messages up to `sequence` are applied and on disk, as the bytes that lead to this chain."""

    version: int
    sender: str
    session: bytes
    sequence: int
    chain: bytes


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A local server says where it stands; the random number tells its answer from others."""

    version: int
    sender: str
    number: bytes
    record: Record


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The answer: where the global server stands, and a new session unless both agree."""

    version: int
    sender: str
    number: bytes
    record: Record
    offer: Offer | None


class Knock(msgspec.Struct, frozen=True, array_like=True, tag="knock"):
    """The global server has started, or has heard what it cannot place: say Hello."""

    version: int
    sender: str


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """May this process, known by a random number, use the slot with this number?"""

    version: int
    sender: str
    session: bytes
    process: bytes
    slot: int


class Grant(msgspec.Struct, frozen=True, array_like=True, tag="grant"):
    """The slot belongs to that process from now on, or to another one, for ever."""

    version: int
    sender: str
    session: bytes
    process: bytes
    slot: int
    granted: bool


Frame = Numbered | Receipt | Hello | Welcome | Knock | Ask | Grant


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """How every frame of every version begins."""

    kind: str
    version: int
    sender: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_head = msgspec.msgpack.Decoder(_Head)


def encode_frame(frame: Frame) -> bytes:
    return _encoder.encode(frame)


def decode_frame(data: bytes, sender: str) -> Frame:
    """The frame that `sender` is known to have sent, or `InvalidMessage`."""
    if len(data) > MAX_FRAME:
        raise InvalidMessage(f"a frame of {len(data)} bytes")
    try:
        head = _head.decode(data)
        if head.sender != sender:
            raise InvalidMessage(f"a frame of {head.sender!r} came from {sender!r}")
        if head.version != VERSION:
            raise OtherVersion(
                f"{sender} speaks version {head.version} of the link, this server version {VERSION}: "
                "run the same version of fclub on both"
            )
        frame: Frame = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"not a frame: {error}") from None
    _check(frame)
    return frame


def _check(frame: Frame) -> None:
    if isinstance(frame, Numbered | Receipt) and frame.sequence < 0:
        raise InvalidMessage(f"sequence number {frame.sequence}")
    if isinstance(frame, Ask | Grant) and not 0 <= frame.slot < LARGEST:
        raise InvalidMessage(f"slot {frame.slot}")
    if isinstance(frame, Hello | Welcome):
        record = frame.record
        numbers = (record.ordinal, record.sent, record.confirmed, record.received, record.used)
        if not all(0 <= number < LARGEST for number in numbers):
            raise InvalidMessage("a record with numbers that make no sense")
        if len(record.chains) != record.sent - record.confirmed + 1:
            raise InvalidMessage(f"{len(record.chains)} chains of {record.sent} frames")
