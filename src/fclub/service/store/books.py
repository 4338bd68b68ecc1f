"""What has left a local server, as rows of its store: its messages, and the entries of its ledger.

Both are written in the transaction that stores the frame, so before it can leave. A replay has to lead
to the entries that are stored: neither fewer nor others.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from fclub.errors import FclubError, InvalidFile
from fclub.privacy.ledger import Header, Ledger, ReleaseEvent
from fclub.protocol.messages import Message, read_count
from fclub.service.store.backup import describe, read_only
from fclub.service.store.store import Changes, Store

_ENTER = "INSERT INTO ledger VALUES (?, ?, ?, ?)"
_SEND = "INSERT INTO sent VALUES (?, ?, ?, ?, ?, ?, ?)"


REPEATING = ("digest", "sums")
"""Kinds of messages that tell all that was released so far, also when nothing is new."""


class Books:
    """The sink of a ledger, or of none where exact statistics leave."""

    def __init__(self, ledger: Ledger | None, store: Store) -> None:
        self.ledger, self.store = ledger, store
        self.entries = self._kept = self.sent = 0
        self._told = False
        self._pending: list[ReleaseEvent] = []
        if ledger is not None:
            store.fix("ledger", msgspec.to_builtins(ledger.header))
            ledger.sink = self._pending.append

    def post(self, message: Message, session: int, changes: Changes) -> None:
        """A message is about to be stored, and with it what was entered for it."""
        parts = message.parts()
        counts = sum(read_count(part.statistics) for part in parts)
        clusters = msgspec.json.encode([part.cluster.hex() for part in parts]).decode()
        self.note(type(message).__name__.lower(), session, changes, len(parts), counts, clusters)
        self.enter(changes)

    def note(
        self,
        kind: str,
        session: int,
        changes: Changes,
        clusters: int = 0,
        observations: int = 0,
        body: str = "[]",
    ) -> None:
        """Something is about to leave."""
        self.sent += 1
        row = self.sent, time.time(), kind, clusters, observations, body, session
        changes.write(_SEND, *row)

    def enter(self, changes: Changes) -> None:
        """Store what was entered since the last message, or for none."""
        if not self._pending:
            return
        now = time.time()
        for event in self._pending:
            self.entries += 1
            changes.write(_ENTER, self.entries, now, self.sent, msgspec.json.encode(event).decode())
        self._pending.clear()

    @property
    def exhausted(self) -> bool:
        """The budget does not allow what was to be released; the server only learns for itself."""
        return self.ledger is not None and self.ledger.exhausted

    def news(self, exhausted: bool) -> list[str]:
        """Log it once for the operator."""
        told, self._told = self._told, exhausted
        return ["privacy budget used up: nothing more is released"] if exhausted > told else []

    def recover(self, entries: int, sent: int) -> None:
        """Take up the entries and messages that a snapshot knows of."""
        self.sent = sent
        self.entries = self._kept = entries
        if self.ledger is not None:
            rows = self.store.reader.execute(
                "SELECT event FROM ledger WHERE entry <= ? ORDER BY entry", (entries,)
            )
            self.ledger.restore(msgspec.json.decode(row, type=ReleaseEvent) for (row,) in rows)

    def compare(self, changes: Changes) -> None:
        """Refuse a store whose entries are not those that a replay of the log has made."""
        made = [(row[0], *row[2:]) for sql, row in changes.statements if sql == _ENTER]
        sql = "SELECT entry, frame, event FROM ledger WHERE entry > ? ORDER BY entry"
        if made != self.store.reader.execute(sql, (self._kept,)).fetchall():
            raise InvalidFile(f"{self.store.path}: the log does not lead to the entries of the ledger")

    def messages(self) -> dict[str, int]:
        """How many messages of each kind were sent."""
        return dict(self.store.reader.execute("SELECT kind, count(*) FROM sent GROUP BY kind"))

    def unaccounted(self) -> int:
        """Messages for which the ledger should have an entry and has none.

        A digest holds all that was released of some clusters. After a detection they may be other
        clusters of the same users: then it says again what was released before, which costs nothing.
        It must not say more than that.
        """
        observations = "total(json_extract(event, '$.observations'))"
        before = f"SELECT {observations} FROM ledger WHERE frame <= sequence"
        sql = (
            "SELECT count(*) FROM sent WHERE sequence NOT IN (SELECT frame FROM ledger) AND "
            f"(kind NOT IN ({', '.join('?' * len(REPEATING))}) OR observations > ({before}))"
        )
        return int(self.store.reader.execute(sql, REPEATING).fetchone()[0]) if self.ledger else 0


def read_books(path: Path) -> Ledger:
    """The ledger of a local server's store, accounted again; the server may be running."""
    try:
        with closing(read_only(path)) as store:
            header = store.execute("SELECT value FROM meta WHERE key = 'ledger'").fetchone()
            rows = store.execute("SELECT event FROM ledger ORDER BY entry").fetchall()
    except sqlite3.Error as error:
        raise InvalidFile(f"{path} is not the store of a local server: {error}") from None
    if header is None:
        raise InvalidFile(f"{path} has no ledger: exact statistics leave this server")
    try:
        ledger = Ledger.of(msgspec.json.decode(header[0], type=Header))
        ledger.restore(msgspec.json.decode(row, type=ReleaseEvent) for (row,) in rows)
    except (msgspec.DecodeError, FclubError) as error:
        raise InvalidFile(f"{path} holds a ledger that does not add up: {error}") from None
    return ledger


class SentMessage(NamedTuple):
    """One message: its number among all, when it was made, in which session, and what was in it.

    `charged` names the streams of the ledger that were entered for it; None where nothing is claimed.
    Of `confirmed` the store knows only in the present session.
    """

    number: int
    made: float
    session: int
    kind: str
    clusters: int
    observations: int
    charged: list[str] | None
    confirmed: bool | None


def read_sent(path: Path) -> list[SentMessage]:
    """All messages of a local server, in their order."""
    if describe(path)["kind"] != "local":
        raise InvalidFile(f"{path} is not the store of a local server: only those release anything")
    try:
        with closing(read_only(path)) as store:
            claimed = store.execute("SELECT 1 FROM meta WHERE key = 'ledger'").fetchone() is not None
            (waiting,) = store.execute("SELECT count(*) FROM outbox").fetchone()
            begun = store.execute("SELECT value FROM meta WHERE key = 'begun'").fetchone()
            entries = store.execute("SELECT frame, event FROM ledger ORDER BY entry").fetchall()
            columns = "sequence, made, session, kind, clusters, observations"
            rows = store.execute(f"SELECT {columns} FROM sent ORDER BY sequence").fetchall()
    except sqlite3.Error as error:
        raise InvalidFile(f"{path} does not hold a whole state: {error}") from None
    now = json.loads(begun[0])["session"] if begun else 0
    charged: dict[int, list[str]] = {}
    for frame, event in entries:
        charged.setdefault(frame, []).append(json.loads(event)["stream"])
    return [
        SentMessage(
            number=number,
            made=made,
            session=session,
            kind=kind,
            clusters=clusters,
            observations=observations,
            charged=sorted(set(charged.get(number, []))) if claimed else None,
            confirmed=place < len(rows) - waiting if session == now else None,
        )
        for place, (number, made, session, kind, clusters, observations) in enumerate(rows)
    ]


def in_words(sent: SentMessage) -> str:
    """A line for people."""
    holds = (
        f"{sent.observations} observations of {sent.clusters} clusters" if sent.clusters else "no data"
    )
    cost = "exactly, without noise"
    if sent.charged is not None:
        cost = f"noise charged to {', '.join(sent.charged)}" if sent.charged else "released before"
    heard = {True: "", False: "; not confirmed yet", None: "; of an earlier session"}[sent.confirmed]
    told = f"; {cost}" if sent.clusters else ""
    return f"{sent.kind} with {holds}{told}{heard}"
