"""What crosses the wire: numbered messages, and receipts that say which of them were applied.

A numbered frame is written once, stored, and sent again byte for byte until its receipt comes. The
sender's name is in it so that a frame on a foreign subject is noticed even without a broker's rules.
"""

from __future__ import annotations

import msgspec

from fclub.errors import InvalidMessage

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
