"""What a node did since it was last asked: rows to write, then frames and receipts to send."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DROP_EVERY = 50
"""How many log entries come between two portions of superfluous ones that are dropped."""

Statement = tuple[str, tuple[Any, ...]]


@dataclass
class Changes:
    """`frames` are (peer, bytes); a peer needs only the last receipt.

    `rewards` are the decisions that get a reward by these rows, `notices` what an operator should read.
    """

    statements: list[Statement] = field(default_factory=list)
    rewards: list[bytes] = field(default_factory=list)
    frames: list[tuple[str, bytes]] = field(default_factory=list)
    receipts: dict[str, bytes] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def write(self, sql: str, *parameters: Any) -> None:
        self.statements.append((sql, parameters))

    def note(self, key: str, value: str) -> None:
        """Remember a value under a name, in place of the one that was there."""
        self.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    def log(self, entry: int, snapshot: int, *columns: str | bytes) -> None:
        """A log entry; now and then also the end of some that the last snapshot has made superfluous.

        To drop all of them with the snapshot would stop every request for the time that it takes.
        """
        self.write("INSERT INTO log VALUES (?, ?, ?, ?, ?)", entry, *columns)
        if entry % DROP_EVERY == 0:
            sql = "DELETE FROM log WHERE entry <= min(?, (SELECT min(entry) FROM log) + ?)"
            self.write(sql, snapshot, 2 * DROP_EVERY)

    def snapshot(self, entry: int, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        """A new snapshot replaces the old one."""
        file = io.BytesIO()
        text = np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)
        np.savez(file, values=text, **arrays)
        self.write("DELETE FROM snapshot")
        self.write("INSERT INTO snapshot VALUES (?, ?)", entry, file.getvalue())

    def send(self, peer: str, sequence: int, frame: bytes) -> None:
        """Keep a frame until the peer confirms it, and send it once it is stored."""
        self.write("INSERT INTO outbox VALUES (?, ?, ?)", peer, sequence, frame)
        self.frames.append((peer, frame))

    def confirm(self, peer: str, sequence: int) -> None:
        """The peer has everything up to this number."""
        self.write("DELETE FROM outbox WHERE peer = ? AND sequence <= ?", peer, sequence)

    def add_user(self, row: int, name: str) -> None:
        self.write("INSERT INTO users VALUES (?, ?)", row, name)
