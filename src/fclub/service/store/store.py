"""SQLite on disk: one file per node, one transaction per group of changes.

`log` holds what was applied, in order; replaying what is newer than the snapshot on it gives the state
bit for bit. Noise that an entry drew is stored with it, so that a replay never draws again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fclub.errors import InvalidFile, NotStored, OtherSettings
from fclub.service.store.lock import PRIVATE, Lock

VERSION = 10
MAGIC = b"SQLite format 3\0"
UNREADABLE = sqlite3.Error
"""What a damaged file raises."""


_COMMON = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE log (entry INTEGER PRIMARY KEY, kind TEXT NOT NULL, source TEXT NOT NULL,
                  body BLOB NOT NULL, noise BLOB NOT NULL);
CREATE TABLE outbox (peer TEXT, sequence INTEGER, frame BLOB NOT NULL, chain BLOB NOT NULL DEFAULT x'',
                     PRIMARY KEY (peer, sequence));
CREATE TABLE confirmed (peer TEXT PRIMARY KEY, sequence INTEGER NOT NULL, chain BLOB NOT NULL);
CREATE TABLE snapshot (entry INTEGER PRIMARY KEY, state BLOB NOT NULL);
"""
_ROWS = """
CREATE TABLE IF NOT EXISTS user_rows (row INTEGER NOT NULL, entry INTEGER NOT NULL,
                                      state BLOB NOT NULL, PRIMARY KEY (row, entry)) WITHOUT ROWID;
"""
_LOCAL = """
CREATE TABLE users (row INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE decisions (id BLOB PRIMARY KEY, row INTEGER NOT NULL, item TEXT NOT NULL,
                        features BLOB NOT NULL, made REAL NOT NULL, reward REAL,
                        era INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE sent (sequence INTEGER PRIMARY KEY, made REAL NOT NULL, kind TEXT NOT NULL,
                   clusters INTEGER NOT NULL, observations INTEGER NOT NULL, body TEXT NOT NULL,
                   session INTEGER NOT NULL DEFAULT 0);
CREATE TABLE ledger (entry INTEGER PRIMARY KEY, made REAL NOT NULL, frame INTEGER NOT NULL,
                     event TEXT NOT NULL);
"""
_BY_ROW = "CREATE INDEX IF NOT EXISTS decisions_by_row ON decisions (row);"
_BY_USER = """
CREATE TABLE by_user (row INTEGER, decision BLOB, PRIMARY KEY (row, decision)) WITHOUT ROWID;
"""
_SHOP = """
CREATE TABLE IF NOT EXISTS items (id TEXT PRIMARY KEY, features BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS past (id TEXT PRIMARY KEY, row INTEGER NOT NULL, reward REAL NOT NULL)
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS past_by_row ON past (row);
"""
_SINCE = """
ALTER TABLE decisions ADD COLUMN assumed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE items ADD COLUMN since INTEGER NOT NULL DEFAULT 0;
"""
_OFFERS = """
CREATE TABLE offers (decision BLOB PRIMARY KEY, chance REAL NOT NULL, version INTEGER NOT NULL,
                     body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE former (id TEXT, since INTEGER, until INTEGER NOT NULL, features BLOB NOT NULL,
                     PRIMARY KEY (id, since)) WITHOUT ROWID;
"""
_VERSIONS = "CREATE INDEX offers_by_version ON offers (version);"
SCHEMAS = {
    "local": _COMMON + _LOCAL + _BY_USER + _SHOP + _SINCE + _OFFERS + _VERSIONS + _ROWS,
    "global": _COMMON,
}

_FIRST_GENERATOR = json.dumps(np.random.default_rng(0).bit_generator.state, sort_keys=True)
_SESSIONS = """
DELETE FROM outbox;
ALTER TABLE outbox ADD COLUMN chain BLOB NOT NULL DEFAULT x'';
CREATE TABLE confirmed (peer TEXT PRIMARY KEY, sequence INTEGER NOT NULL, chain BLOB NOT NULL);
"""
_ERAS = """
ALTER TABLE decisions ADD COLUMN era INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sent ADD COLUMN session INTEGER NOT NULL DEFAULT 0;
"""
_TO_BY_USER = """
INSERT INTO by_user SELECT row, id FROM decisions ORDER BY row, id;
INSERT INTO meta SELECT 'by_user_until', coalesce(hex(substr(max(id), 1, 8)) || 'FFFFFFFFFFFFFFFF', '')
    FROM decisions;
DROP INDEX IF EXISTS decisions_by_row;
"""
MIGRATIONS: dict[str, dict[int, str]] = {
    "local": {
        2: f"INSERT INTO meta VALUES ('generator', '{_FIRST_GENERATOR}');",
        3: _BY_ROW,
        4: _SHOP,
        5: _SESSIONS + _ERAS,
        6: _SINCE + _OFFERS,
        7: _ROWS + "INSERT OR REPLACE INTO meta SELECT 'at_once', coalesce(max(entry), 0) FROM log;",
        8: "INSERT INTO meta SELECT 'clusters_at_once', coalesce(max(entry), 0) FROM log;",
        9: _BY_USER + _TO_BY_USER + _VERSIONS,
    },
    "global": {2: "", 3: "", 4: "", 5: _SESSIONS, 6: "", 7: "", 8: "", 9: ""},
}
"""Script v takes a store from version v to v+1; `SCHEMAS` is always the newest version.

Version 1 was never released. It did not account for what it sent, so nothing leads from it. Version 2
did not keep the state of its generator, which always began at seed 0. Version 3 left what it deleted
on free pages. Version 4 had no catalogue and no past data. Version 5 knew no sessions: the first one
sends again what its outbox held. Version 6 kept neither what was on offer nor items that were replaced.
Version 7 kept every state as a whole, and detected within the entry that called for it: entries up to
`at_once` are replayed so. Version 8 still did so where it detected clusters: `clusters_at_once`.
Version 9 had an index of decisions by user.
"""

DROP_EVERY = 50
"""How many log entries come between two portions of superfluous ones that are dropped."""

Statement = tuple[str, tuple[Any, ...] | list[tuple[Any, ...]]]
"""SQL with its parameters, or with a list of them, for each of which it is run."""


@dataclass
class Changes:
    """What a node did since it was last asked: rows to write, then frames and receipts to send.

    `frames` are (peer, bytes) with numbers; `letters` are those without, which follow them. A peer
    needs only the last receipt. `rewards` are the decisions that get a reward by these rows, `past` the
    ids of observations made elsewhere, `notices` what an operator should read. With `erase` nothing
    that these rows delete may be left in any of the store's files.
    """

    statements: list[Statement] = field(default_factory=list)
    rewards: list[bytes] = field(default_factory=list)
    frames: list[tuple[str, bytes]] = field(default_factory=list)
    past: list[str] = field(default_factory=list)
    letters: list[tuple[str, bytes]] = field(default_factory=list)
    receipts: dict[str, bytes] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    erase: bool = False

    def write(self, sql: str, *parameters: Any) -> None:
        self.statements.append((sql, parameters))

    def write_each(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """The same statement for every row."""
        self.statements.append((sql, rows))

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

    def begin_session(self, peer: str, chain: bytes) -> None:
        """Nothing that was numbered before is sent any more; the new chain begins with this value."""
        self.frames = [(name, frame) for name, frame in self.frames if name != peer]
        self.receipts.pop(peer, None)
        self.write("DELETE FROM outbox WHERE peer = ?", peer)
        self._confirmed(peer, 0, chain)

    def send(self, peer: str, sequence: int, frame: bytes, chain: bytes) -> None:
        """Keep a frame until the peer confirms it, and send it once it is stored."""
        self.write("INSERT INTO outbox VALUES (?, ?, ?, ?)", peer, sequence, frame, chain)
        self.frames.append((peer, frame))

    def frames_by_peer(self) -> dict[str, list[bytes]]:
        """The frames to send to each peer, in order."""
        found: dict[str, list[bytes]] = {}
        for peer, frame in self.frames:
            found.setdefault(peer, []).append(frame)
        return found

    def confirm(self, peer: str, sequence: int, chain: bytes) -> None:
        """The peer has everything up to this number."""
        self.write("DELETE FROM outbox WHERE peer = ? AND sequence <= ?", peer, sequence)
        self._confirmed(peer, sequence, chain)

    def _confirmed(self, peer: str, sequence: int, chain: bytes) -> None:
        self.write("INSERT OR REPLACE INTO confirmed VALUES (?, ?, ?)", peer, sequence, chain)

    def add_user(self, row: int, name: str) -> None:
        self.write("INSERT INTO users VALUES (?, ?)", row, name)

    def forget_user(self, row: int) -> None:
        """Delete name and past of a user; what is in the log and in earlier snapshots follows."""
        self.write("DELETE FROM users WHERE row = ?", row)
        self.write("DELETE FROM past WHERE row = ?", row)

    def forget_rows(self, rows: Iterable[int], entry: int) -> None:
        """Delete what the snapshot of this entry has replaced: the log, earlier rows of these users."""
        for row in rows:
            self.write("DELETE FROM user_rows WHERE row = ? AND entry < ?", row, entry)
        self.write("DELETE FROM log WHERE entry <= ?", entry)
        self.erase = True


def is_store(path: Path) -> bool:
    """Whether there is a file of SQLite."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_meta(path: Path) -> dict[str, str]:
    """The values that a store remembers by name; a server may be running on it."""
    if not is_store(path):
        raise InvalidFile(f"there is no store {path}")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return dict(connection.execute("SELECT key, value FROM meta"))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise InvalidFile(f"{path} is not a store: {error}") from None


class Store:
    """The file of one node, which one process at a time may open and only its owner may read.

    Writes come from one thread at a time; reads have their own connection. Without `create` there has
    to be a store already.
    """

    def __init__(self, path: Path | str, kind: str, create: bool = True) -> None:
        self.path, self.kind, self.erased = Path(path), kind, True
        if not create and not is_store(self.path):
            raise InvalidFile(f"there is no store {path}")
        try:
            with ExitStack() as opened:
                opened.callback(Lock(self.path).release)
                if create:
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, PRIVATE))
                self._writer = self._connect(opened)
                self._prepare()
                self.reader = self._connect(opened)
                self._protect()
                self._opened = opened.pop_all()
        except sqlite3.DatabaseError as error:
            raise InvalidFile(f"{path} is not a store: {error}") from None
        except OSError as error:
            raise InvalidFile(f"{path}: {error.strerror}") from None

    def _protect(self) -> None:
        """SQLite makes its files beside the store with the mode of the store; older ones may differ."""
        for file in (self.path, Path(f"{self.path}-wal"), Path(f"{self.path}-shm")):
            if file.exists() and file.stat().st_mode & 0o777 != PRIVATE:
                file.chmod(PRIVATE)

    def _connect(self, opened: ExitStack) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        opened.callback(connection.close)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("PRAGMA secure_delete = ON")
        return connection

    def _prepare(self) -> None:
        """Create the schema in a new file, migrate an old one, refuse a foreign or newer one."""
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        tables = self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and tables == 0:
            self._script(
                SCHEMAS[self.kind] + f"INSERT INTO meta VALUES ('kind', '{self.kind}');", VERSION
            )
            return
        scripts = MIGRATIONS[self.kind]
        if version > VERSION or any(old not in scripts for old in range(version, VERSION)):
            raise InvalidFile(f"{self.path} has store version {version}, expected {VERSION}")
        for old in range(version, VERSION):
            self._script(scripts[old], old + 1)
        if version < 4:  # what older versions have deleted may still be on free pages
            self._writer.execute("VACUUM")
        if self.get("kind") != self.kind:
            raise InvalidFile(f"{self.path} is the store of a {self.get('kind')} server")

    def _script(self, sql: str, version: int) -> None:
        self._writer.executescript(f"BEGIN; {sql} PRAGMA user_version = {version}; COMMIT;")

    def write(self, statements: list[Statement]) -> None:
        """All of them or none, on disk when this returns."""
        try:
            self.stage(statements)
            self.commit()
        except sqlite3.OperationalError as error:
            raise NotStored(f"{self.path} cannot be written: {error}") from error

    def stage(self, statements: list[Statement]) -> None:
        """Open a transaction with these statements; nothing is visible before `commit`."""
        cursor = self._writer.cursor()
        execute = cursor.execute
        execute("BEGIN IMMEDIATE")
        try:
            for sql, parameters in statements:
                if isinstance(parameters, list):
                    cursor.executemany(sql, parameters)
                else:
                    execute(sql, parameters)
        except BaseException:
            execute("ROLLBACK")
            raise

    def commit(self) -> None:
        """Wait for the disk."""
        self._writer.execute("COMMIT")

    def erase(self) -> bool:
        """Leave nothing that was deleted in the file of the log that SQLite writes ahead.

        False while another process reads the store: then the bytes stay until a later checkpoint.
        """
        busy = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        self.erased = not busy
        return self.erased

    def get(self, key: str) -> str | None:
        row = self._writer.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def note(self, key: str, value: str) -> None:
        """Remember a value under a name, in place of the one that was there."""
        changes = Changes()
        changes.note(key, value)
        self.write(changes.statements)

    def fix(self, key: str, value: Any) -> None:
        """Remember a setting that must never change for this file."""
        text, stored = json.dumps(value, sort_keys=True), self.get(key)
        if stored is None:
            self.write([("INSERT INTO meta VALUES (?, ?)", (key, text))])
        elif stored != text:
            raise OtherSettings(f"{self.path} was made with {key} = {stored}, now it is {text}")

    def remember(self, key: str, value: Any) -> Any:
        """What was first stored under this key; a store that has nothing there takes the value."""
        if self.get(key) is None:
            self.fix(key, value)
        return json.loads(self.get(key) or "null")

    def entries(self, after: int) -> Iterator[tuple[int, str, str, bytes, bytes]]:
        """The log after an entry: number, kind, source, body, noise."""
        yield from self.reader.execute("SELECT * FROM log WHERE entry > ? ORDER BY entry", (after,))

    def outbox(self, peer: str) -> list[tuple[int, bytes]]:
        """Numbers and frames that the peer has not confirmed, in order."""
        sql = "SELECT sequence, frame FROM outbox WHERE peer = ? ORDER BY sequence"
        return self.reader.execute(sql, (peer,)).fetchall()

    def compare_outbox(self, peer: str, sent: int, made: list[bytes]) -> tuple[int, dict[int, bytes]]:
        """Check that the frames a replay `made` are the stored ones.

        Returns the number of the last confirmed one, and the chain at every number from there on.
        """
        again = dict(enumerate(made, start=sent - len(made) + 1))
        for sequence, frame in self.outbox(peer):
            if sequence > sent or again.get(sequence, frame) != frame:
                raise InvalidFile(f"{self.path}: the log does not lead to the messages to {peer}")
        sql = "SELECT sequence, chain FROM {} WHERE peer = ? ORDER BY sequence"
        confirmed = self.reader.execute(sql.format("confirmed"), (peer,)).fetchone() or (0, b"")
        return confirmed[0], dict([confirmed, *self.reader.execute(sql.format("outbox"), (peer,))])

    def users(self) -> dict[str, int]:
        """The row of every user by name."""
        return dict(self.reader.execute("SELECT name, row FROM users"))

    def integrity(self) -> str:
        return str(self.reader.execute("PRAGMA integrity_check").fetchone()[0])

    def close(self) -> None:
        self._opened.close()
