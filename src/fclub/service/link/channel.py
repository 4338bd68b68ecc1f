"""One direction each way between two nodes, made reliable: numbers, receipts, nothing applied twice.

Numbered messages cross the wire, and receipts that say which of them were applied. A numbered frame is
written once, stored, and sent again byte for byte until its receipt comes. A receipt names the value of
the chain, a running hash over all payloads of the session, so that it confirms these bytes and no
others under the same numbers.

The version and the sender's name are the first things in every frame. So peers of another version are
told apart by name, and a frame on a foreign subject is noticed even without a broker's rules. Other
frames are those by which two stores agree on a session. The numbered frames of one commit travel in a
bundle: they arrive together, and so the peer stores what they lead to in one transaction.

Plain objects without input or output: what has to be stored is put into `Changes`, and a frame may only
be sent after the changes that made it are on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from fclub.errors import Conflict, InvalidFile, InvalidMessage, OtherSession, OtherVersion, OutOfOrder
from fclub.service.store.store import Changes

GLOBAL = "global"
"""What the global server is called on the wire."""

VERSION = 2
MAX_FRAME = 1 << 26
"""Bytes of the largest frame that is looked at: a report of 100,000 clusters in dimension 10."""

BUNDLE_BYTES, BUNDLE_FRAMES = 1 << 18, 256
"""What a bundle holds at most: a broker takes messages of a megabyte unless it is told otherwise."""

LARGEST = 1 << 62


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What one side knows of the session with the other.

    `incarnation` is made with a store, `marked` tells that the store was restored from a backup.
    `chains` are the values of the chain of its own frames at the numbers from `confirmed` to `sent`,
    `heard` the value of the other's at `received`. `used` is the highest phase or slot that it knows
    to be used. Only the global server says `superseded`: of the incarnation that it answers. `rules` is
    a hash of model and plan.
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
    rules: bytes = b""


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


class Shut(msgspec.Struct, frozen=True, array_like=True, tag="shut"):
    """The global server does not listen to this local server, which should tell its operator."""

    version: int
    sender: str


class Cohort(msgspec.Struct, frozen=True, array_like=True, tag="cohort"):
    """A message of a secure sum; it is said again until it is answered, and needs no number."""

    version: int
    sender: str
    payload: bytes


Frame = Numbered | Receipt | Hello | Welcome | Knock | Shut | Cohort


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """How every frame of every version begins."""

    kind: str
    version: int
    sender: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_head = msgspec.msgpack.Decoder(_Head)


class Bundle(msgspec.Struct, frozen=True, array_like=True, tag="bundle"):
    """Frames that one commit has stored, in their order; each is looked at as if it came alone."""

    version: int
    sender: str
    frames: tuple[bytes, ...]


_bundle = msgspec.msgpack.Decoder(Bundle)


def bundled(sender: str, frames: list[bytes]) -> Iterator[bytes]:
    """The same frames as fewer messages; one alone stays as it is."""
    together: list[bytes] = []
    size = 0
    for frame in frames:
        if together and (len(together) == BUNDLE_FRAMES or size + len(frame) > BUNDLE_BYTES):
            yield _as_one(sender, together)
            together, size = [], 0
        together.append(frame)
        size += len(frame)
    if together:
        yield _as_one(sender, together)


def _as_one(sender: str, frames: list[bytes]) -> bytes:
    return frames[0] if len(frames) == 1 else _encoder.encode(Bundle(VERSION, sender, tuple(frames)))


def unbundled(data: bytes, sender: str) -> tuple[bytes, ...]:
    """The frames of a bundle of this sender; anything else is left to `decode_frame`."""
    try:
        bundle = _bundle.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return (data,)
    sound = bundle.version == VERSION and bundle.sender == sender
    return bundle.frames if sound and len(bundle.frames) <= BUNDLE_FRAMES else (data,)


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
    if isinstance(frame, Hello | Welcome):
        record = frame.record
        numbers = (record.ordinal, record.sent, record.confirmed, record.received, record.used)
        if not all(0 <= number < LARGEST for number in numbers):
            raise InvalidMessage("a record with numbers that make no sense")
        if len(record.chains) != record.sent - record.confirmed + 1:
            raise InvalidMessage(f"{len(record.chains)} chains of {record.sent} frames")


CHAIN_BYTES = 16


def extend(chain: bytes, payload: bytes) -> bytes:
    """The value of a chain after one more message."""
    return blake2b(payload, digest_size=CHAIN_BYTES, key=chain).digest()


class Channel:
    """Counters of one peer in one session: last number sent, confirmed by the peer, received from it.

    Before the first session (ordinal 0) nothing is sent: there is nobody who would know it again.
    """

    def __init__(self, name: str, peer: str) -> None:
        self.name, self.peer = name, peer
        self._set(0, b"")

    def _set(self, ordinal: int, session: bytes) -> None:
        self.ordinal, self.session = ordinal, session
        self.sent = self.confirmed = self.received = 0
        self.chains = {0: session}
        self.heard = session

    def begin(self, ordinal: int, session: bytes, changes: Changes) -> None:
        """A new session: numbers begin at 1, and what was not confirmed is never sent."""
        self._set(ordinal, session)
        changes.begin_session(self.peer, session)

    def send(self, payload: bytes, changes: Changes) -> None:
        """Number a message, store it, send it when it is stored."""
        if not self.ordinal:
            return
        chain = extend(self.chains[self.sent], payload)
        self.sent += 1
        self.chains[self.sent] = chain
        frame = encode_frame(Numbered(VERSION, self.name, self.session, self.sent, payload))
        changes.send(self.peer, self.sent, frame, chain)

    def check_session(self, session: bytes) -> None:
        if session != self.session or not self.ordinal:
            raise OtherSession(f"a frame of {self.peer} of another session than number {self.ordinal}")

    def is_next(self, frame: Numbered) -> bool:
        """Whether it is the frame to apply now; False if that number was applied before."""
        if frame.sequence > self.received + 1:
            raise OutOfOrder(f"message {frame.sequence} of {self.peer} after {self.received}")
        return frame.sequence == self.received + 1

    def applied(self, payload: bytes) -> None:
        """One message more has been applied."""
        self.received += 1
        self.heard = extend(self.heard, payload)

    def confirm(self, sequence: int, chain: bytes, changes: Changes) -> None:
        """The peer has applied everything up to a number: it need not be sent again."""
        if sequence < self.confirmed:
            return
        if self.chains.get(sequence) != chain:
            raise Conflict(f"{self.peer} has heard other messages up to {sequence} than were sent")
        if sequence > self.confirmed:
            for number in range(self.confirmed, sequence):
                del self.chains[number]
            self.confirmed = sequence
            changes.confirm(self.peer, sequence, chain)

    def receipt(self) -> bytes:
        return encode_frame(Receipt(VERSION, self.name, self.session, self.received, self.heard))

    def record(self, incarnation: bytes, marked: bool, used: int, superseded: bool = False) -> Record:
        """Where this side stands."""
        return Record(
            incarnation=incarnation,
            marked=marked,
            ordinal=self.ordinal,
            session=self.session,
            sent=self.sent,
            confirmed=self.confirmed,
            received=self.received,
            chains=tuple(self.chains[n] for n in range(self.confirmed, self.sent + 1)),
            heard=self.heard,
            used=used,
            superseded=superseded,
        )

    def counters(self) -> dict[str, int]:
        numbers = {"sent": self.sent, "confirmed": self.confirmed, "received": self.received}
        return numbers | {"session": self.ordinal}

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps; what is confirmed stands in the store by itself."""
        texts = {"id": self.session.hex(), "last": self.chains[self.sent].hex()}
        return self.counters() | texts | {"heard": self.heard.hex()}

    def restore(self, state: dict[str, Any]) -> None:
        """Before the first session there is nothing to take up."""
        if not state["session"]:
            return
        self._set(int(state["session"]), bytes.fromhex(state["id"]))
        self.sent, self.received = int(state["sent"]), int(state["received"])
        self.chains, self.heard = (
            {self.sent: bytes.fromhex(state["last"])},
            bytes.fromhex(state["heard"]),
        )

    def recover(self, confirmed: int, chains: dict[int, bytes]) -> None:
        """Take up what the store knows of the frames from the last confirmed one on."""
        if chains.get(self.sent) != self.chains[self.sent]:
            raise InvalidFile(f"the chain of messages to {self.peer} is not the one that was stored")
        self.confirmed, self.chains = confirmed, chains
