"""One direction each way between two nodes, made reliable: numbers, receipts, nothing applied twice.

Numbered messages cross the wire, and receipts that say which of them were applied. A numbered frame is
written once, stored, and sent again byte for byte until its receipt comes. The sender's name is in it
so that a frame on a foreign subject is noticed even without a broker's rules.

Plain objects without input or output: what has to be stored is put into `Changes`, and a frame may only
be sent after the changes that made it are on disk.
"""

from __future__ import annotations

import msgspec

from fclub.errors import InvalidMessage, OutOfOrder
from fclub.service.store.store import Changes

GLOBAL = "global"
"""What the global server is called on the wire."""

VERSION = 1
MAX_FRAME = 1 << 26
"""Bytes of the largest frame that is looked at: a report of 100,000 clusters in dimension 10."""


class Numbered(msgspec.Struct, frozen=True, array_like=True, tag="message"):
    """Message number `sequence` (1, 2, …) of this sender to this receiver."""

    version: int
    sender: str
    sequence: int
    payload: bytes


class Receipt(msgspec.Struct, frozen=True, array_like=True, tag="receipt"):
    """All messages up to `sequence` are applied and on disk."""

    version: int
    sender: str
    sequence: int


Frame = Numbered | Receipt

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    return _encoder.encode(frame)


def decode_frame(data: bytes, sender: str) -> Frame:
    """The frame that `sender` is known to have sent, or `InvalidMessage`."""
    if len(data) > MAX_FRAME:
        raise InvalidMessage(f"a frame of {len(data)} bytes")
    try:
        frame: Frame = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"not a frame: {error}") from None
    if frame.version != VERSION:
        raise InvalidMessage(f"frame version {frame.version}, expected {VERSION}")
    if frame.sender != sender:
        raise InvalidMessage(f"a frame of {frame.sender!r} came from {sender!r}")
    if frame.sequence < 0:
        raise InvalidMessage(f"sequence number {frame.sequence}")
    return frame


class Channel:
    """Counters of one peer: last number sent, confirmed by the peer, and received from it."""

    def __init__(self, name: str, peer: str, sent: int = 0, confirmed: int = 0, received: int = 0):
        self.name, self.peer = name, peer
        self.sent, self.confirmed, self.received = sent, confirmed, received

    def send(self, payload: bytes, changes: Changes) -> None:
        """Number a message, store it, send it when it is stored."""
        self.sent += 1
        frame = encode_frame(Numbered(VERSION, self.name, self.sent, payload))
        changes.send(self.peer, self.sent, frame)

    def is_next(self, frame: Numbered) -> bool:
        """Whether it is the frame to apply now; False if it was applied before."""
        if frame.sequence > self.received + 1:
            raise OutOfOrder(f"message {frame.sequence} of {self.peer} after {self.received}")
        return frame.sequence == self.received + 1

    def confirm(self, receipt: Receipt, changes: Changes) -> None:
        """The peer has applied everything up to a number: it need not be sent again."""
        if receipt.sequence > self.sent:
            raise InvalidMessage(f"{self.peer} confirms message {receipt.sequence}, sent {self.sent}")
        if receipt.sequence > self.confirmed:
            self.confirmed = receipt.sequence
            changes.confirm(self.peer, self.confirmed)

    def receipt(self) -> bytes:
        return encode_frame(Receipt(VERSION, self.name, self.received))

    def counters(self) -> dict[str, int]:
        return {"sent": self.sent, "confirmed": self.confirmed, "received": self.received}
