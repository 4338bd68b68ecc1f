"""One direction each way between two nodes, made reliable: numbers, receipts, nothing applied twice.

Plain objects without input or output: what has to be stored is put into `Changes`, and a frame may only
be sent after the changes that made it are on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fclub.errors import InvalidMessage, OutOfOrder
from fclub.service.link.frames import VERSION, Numbered, Receipt, encode_frame

Statement = tuple[str, tuple[Any, ...]]


@dataclass
class Changes:
    """What a node did since it was last asked: rows to write, then frames and receipts to send.

    `frames` are (peer, bytes); a peer needs only the last receipt. `rewards` are the decisions that get
    a reward by these rows, `notices` what an operator should read.
    """

    statements: list[Statement] = field(default_factory=list)
    rewards: list[bytes] = field(default_factory=list)
    frames: list[tuple[str, bytes]] = field(default_factory=list)
    receipts: dict[str, bytes] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def write(self, sql: str, *parameters: Any) -> None:
        self.statements.append((sql, parameters))


class Channel:
    """Counters of one peer: last number sent, confirmed by the peer, and received from it."""

    def __init__(self, name: str, peer: str, sent: int = 0, confirmed: int = 0, received: int = 0):
        self.name, self.peer = name, peer
        self.sent, self.confirmed, self.received = sent, confirmed, received

    def send(self, payload: bytes, changes: Changes) -> None:
        """Number a message, store it, send it when it is stored."""
        self.sent += 1
        frame = encode_frame(Numbered(VERSION, self.name, self.sent, payload))
        changes.write("INSERT INTO outbox VALUES (?, ?, ?)", self.peer, self.sent, frame)
        changes.frames.append((self.peer, frame))

    def is_next(self, frame: Numbered) -> bool:
        """Is it the one to apply now? False for one that was applied before."""
        if frame.sequence > self.received + 1:
            raise OutOfOrder(f"message {frame.sequence} of {self.peer} after {self.received}")
        return frame.sequence == self.received + 1

    def confirm(self, receipt: Receipt, changes: Changes) -> None:
        """The peer has applied everything up to a number: it need not be sent again."""
        if receipt.sequence > self.sent:
            raise InvalidMessage(f"{self.peer} confirms message {receipt.sequence}, sent {self.sent}")
        if receipt.sequence > self.confirmed:
            self.confirmed = receipt.sequence
            changes.write(
                "DELETE FROM outbox WHERE peer = ? AND sequence <= ?", self.peer, self.confirmed
            )

    def receipt(self) -> bytes:
        return encode_frame(Receipt(VERSION, self.name, self.received))

    def counters(self) -> dict[str, int]:
        return {"sent": self.sent, "confirmed": self.confirmed, "received": self.received}
