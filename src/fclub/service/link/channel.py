"""One direction each way between two nodes, made reliable: numbers, receipts, nothing applied twice.

Numbered messages cross the wire, and receipts that say which of them were applied. A numbered frame is
written once, stored, and sent again byte for byte until its receipt comes. A receipt names the value of
the chain, a running hash over all payloads of the session, so that it confirms these bytes and no
others under the same numbers.

Plain objects without input or output: what has to be stored is put into `Changes`, and a frame may only
be sent after the changes that made it are on disk.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from fclub.errors import Conflict, InvalidFile, OtherSession, OutOfOrder
from fclub.service.link.frames import VERSION, Numbered, Receipt, Record, encode_frame
from fclub.service.store.store import Changes

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
        """Older snapshots know no session: the next Hello begins the first one."""
        if not state.get("session"):
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
