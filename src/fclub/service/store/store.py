"""SQLite on disk: one file per node, one transaction per group of changes.

`log` holds what was applied, in order; replaying what is newer than the snapshot on it gives the state
bit for bit. Noise that an entry drew is stored with it, so that a replay never draws again.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fclub.errors import InvalidFile, NotStored, OtherSettings, OtherStoreVersion
from fclub.service.store.lock import PRIVATE, Lock

VERSION = 1
APPLICATION = int.from_bytes(b"fclu", "big")
"""What SQLite keeps in the head of a file to tell whose it is."""

FULL_PART, FULL_BYTES = 0.05, 1_000_000_000
"""A disk is nearly full when less than this is free, of it and at all."""

MAGIC = b"SQLite format 3\0"
UNREADABLE = sqlite3.Error
"""What a damaged file raises."""

_COMMON = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE log (entry INTEGER PRIMARY KEY, kind TEXT NOT NULL, source TEXT NOT NULL,
                  body BLOB NOT NULL, noise BLOB NOT NULL);
CREATE TABLE outbox (peer TEXT, sequence INTEGER, frame BLOB NOT NULL, chain BLOB NOT NULL,
                     PRIMARY KEY (peer, sequence));
CREATE TABLE confirmed (peer TEXT PRIMARY KEY, sequence INTEGER NOT NULL, chain BLOB NOT NULL);
CREATE TABLE snapshot (entry INTEGER PRIMARY KEY, state BLOB NOT NULL);
"""
_LOCAL = """
CREATE TABLE users (row INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE user_rows (row INTEGER NOT NULL, entry INTEGER NOT NULL, state BLOB NOT NULL,
                        PRIMARY KEY (row, entry)) WITHOUT ROWID;
CREATE TABLE decisions (id BLOB PRIMARY KEY, row INTEGER NOT NULL, item TEXT NOT NULL,
                        features BLOB NOT NULL, made REAL NOT NULL, reward REAL,
                        era INTEGER NOT NULL, assumed INTEGER NOT NULL DEFAULT 0,
                        events BLOB, expected INTEGER) WITHOUT ROWID;
CREATE TABLE by_user (row INTEGER, decision BLOB, PRIMARY KEY (row, decision)) WITHOUT ROWID;
CREATE TABLE offers (decision BLOB PRIMARY KEY, chance REAL NOT NULL, version INTEGER NOT NULL,
                     body BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX offers_by_version ON offers (version);
CREATE TABLE items (id TEXT PRIMARY KEY, features BLOB NOT NULL, since INTEGER NOT NULL,
                    attributes BLOB) WITHOUT ROWID;
CREATE TABLE former (id TEXT, since INTEGER, until INTEGER NOT NULL, features BLOB NOT NULL,
                     PRIMARY KEY (id, since)) WITHOUT ROWID;
CREATE TABLE past (id TEXT PRIMARY KEY, row INTEGER NOT NULL, reward REAL NOT NULL, item TEXT,
                   told REAL NOT NULL, expected INTEGER) WITHOUT ROWID;
CREATE INDEX past_by_row ON past (row);
CREATE TABLE sent (sequence INTEGER PRIMARY KEY, made REAL NOT NULL, kind TEXT NOT NULL,
                   clusters INTEGER NOT NULL, observations INTEGER NOT NULL, body TEXT NOT NULL,
                   session INTEGER NOT NULL);
CREATE TABLE ledger (entry INTEGER PRIMARY KEY, made REAL NOT NULL, frame INTEGER NOT NULL,
                     event TEXT NOT NULL);
"""
SCHEMAS = {"local": _COMMON + _LOCAL, "global": _COMMON}
"""Tables by kind of server. From the first release on, a new version comes with a migration."""

DROP_EVERY = 50
"""How many log entries come between two portions of superfluous ones that are dropped."""

Statement = tuple[str, tuple[Any, ...] | list[tuple[Any, ...]]]
"""SQL with its parameters, or with a list of them, for each of which it is run."""


@dataclass
class Changes:
    """What a node did since it was last asked: rows to write, then frames and receipts to send.

    `frames` are (peer, bytes) with numbers; `letters` are those without, which follow them. A peer
    needs only the last receipt. `rewards` are the decisions that get a reward by these rows, `past` the
    ids of observations made elsewhere, `dropped` those of either that are deleted, `notices` what an
    operator should read. With `erase` nothing
    that these rows delete may be left in any of the store's files.
    """

    statements: list[Statement] = field(default_factory=list)
    rewards: list[bytes] = field(default_factory=list)
    frames: list[tuple[str, bytes]] = field(default_factory=list)
    past: list[str] = field(default_factory=list)
    dropped: list[bytes | str] = field(default_factory=list)
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


def require_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that this version of the package does not read, with what to do."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise OtherStoreVersion(
            f"{path} is not a store of fclub, or of one before its first release: go on with the "
            "version that made it, or begin with a new store, which spends a budget of its own"
        )
    if version != VERSION:
        raise OtherStoreVersion(
            f"{path} has store version {version}, expected {VERSION}: run the version of fclub that "
            f"made it, or restore a backup of store version {VERSION}"
        )


class Disk(NamedTuple):
    """`disk` is where it is mounted; the folder of a store, without a size, if that cannot be told."""

    disk: str
    free_bytes: int
    size_bytes: int

    @property
    def nearly_full(self) -> str | None:
        """What to tell people, if it is so; without numbers, which would count what is stored."""
        if not self.size_bytes:
            return f"the folder {self.disk} of the store cannot be read; is its disk still there?"
        if self.free_bytes >= min(FULL_PART * self.size_bytes, FULL_BYTES):
            return None
        return f"the disk at {self.disk} is nearly full; make room: a server ends when it cannot store"


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
        """Create the schema in a new file; refuse one of another version, or of another server."""
        if not self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            own = f"INSERT INTO meta VALUES ('kind', '{self.kind}');"
            head = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            self._writer.executescript(f"BEGIN; {SCHEMAS[self.kind]} {own} {head} COMMIT;")
            return
        require_version(self._writer, self.path)
        if self.get("kind") != self.kind:
            raise InvalidFile(f"{self.path} is the store of a {self.get('kind')} server")

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

    def describe(self, error: BaseException) -> dict[str, Any]:
        """What is wrong with the disk, if an error is about that: which one, and how full it is."""
        if not isinstance(error, sqlite3.Error):
            return {}
        code = getattr(error, "sqlite_errorname", "unknown")
        return {"reason": code, "store": str(self.path), **self.disk._asdict()}

    @property
    def disk(self) -> Disk:
        """What the store is on."""
        try:
            folder = self.path.resolve().parent
            place = next(one for one in (folder, *folder.parents) if one.is_mount())
            usage = shutil.disk_usage(folder)
        except OSError:
            return Disk(str(self.path.parent), 0, 0)
        return Disk(str(place), usage.free, usage.total)

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
