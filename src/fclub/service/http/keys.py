"""Keys: who may ask a server what, and until when.

A key is a random token with a name and scopes. Only a hash of the token is kept, in a file beside the
store, which `fclub keys` changes while the server runs: it looks for changes every second.
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from fclub.errors import Forbidden, InvalidFile, InvalidSetting, Unauthorized
from fclub.paths import write_atomically
from fclub.service.monitoring import Monitor
from fclub.service.settings import GlobalSettings, LocalSettings

RECOMMEND, FEEDBACK, CATALOGUE, IMPORT = "recommend", "feedback", "catalogue", "import"
PRIVACY, FORGET, METRICS, ADMIN = "privacy", "forget", "metrics", "admin"
SCOPES = (RECOMMEND, FEEDBACK, CATALOGUE, IMPORT, PRIVACY, FORGET, METRICS, ADMIN)

SIMULATE = "simulate"
"""The scope of simulated visitors; it is worth nothing where visitors are real."""

NEEDS: Mapping[tuple[str, str], str | None] = {
    ("POST", "/v1/recommend"): RECOMMEND,
    ("POST", "/v1/recommend/batch"): RECOMMEND,
    ("GET", "/v1/items/{item}/similar"): RECOMMEND,
    ("GET", "/v1/popular"): RECOMMEND,
    ("POST", "/v1/feedback"): FEEDBACK,
    ("POST", "/v1/feedback/batch"): FEEDBACK,
    ("GET", "/v1/items"): CATALOGUE,
    ("PUT", "/v1/items"): CATALOGUE,
    ("GET", "/v1/items/{item}"): CATALOGUE,
    ("DELETE", "/v1/items/{item}"): CATALOGUE,
    ("POST", "/v1/observations"): IMPORT,
    ("GET", "/v1/users/{user}"): PRIVACY,
    ("GET", "/v1/users/{user}/data"): PRIVACY,
    ("GET", "/v1/privacy"): PRIVACY,
    ("DELETE", "/v1/users/{user}"): FORGET,
    ("GET", "/metrics"): METRICS,
    ("GET", "/v1/link"): METRICS,
    ("GET", "/v1/servers"): METRICS,
    ("GET", "/v1/slots"): METRICS,
    ("GET", "/v1/clusters"): ADMIN,
    ("GET", "/v1/clusters/liked"): ADMIN,
    ("GET", "/v1/items/{item}/liked"): ADMIN,
    ("GET", "/v1/users/{user}/preview"): ADMIN,
    ("GET", "/v1/live"): ADMIN,
    ("POST", "/v1/servers/{server}/release"): ADMIN,
    ("POST", "/v1/visitors"): SIMULATE,
    ("GET", "/"): None,
    ("GET", "/static/{name}"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
}
"""The one scope that each route of both servers asks for; None of those that anybody may ask."""

LOOK_SECONDS = 1.0
NOTE_SECONDS = 60.0
"""How often it is written down that keys were used."""

ENDING = ".keys"
_NONE = FileNotFoundError, NotADirectoryError
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times are seconds since 1970; `used` is true to a minute."""

    name: str
    hash: str
    scopes: frozenset[str]
    made: float
    expires: float | None = None
    used: float | None = None


def needed(method: str, path: str) -> str | None:
    """The scope that a route asks for; every route has its line in the table."""
    return NEEDS[method, re.sub(r":\w+}", "}", path)]


def new_token() -> str:
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Tokens have 256 bits of entropy: a plain hash cannot be searched."""
    return sha256(token.encode()).hexdigest()


def keys_of(store: str | Path) -> Path:
    """The file of a store's keys; one that ends so is such a file itself."""
    return Path(store) if str(store).endswith(ENDING) else Path(f"{store}{ENDING}")


class KeyFile:
    """The keys of one server, or of several that share them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Key]:
        """All keys by name; none if there is no file."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, Key])
        except _NONE:
            return {}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidFile(f"{self.path}: expected a file of fclub keys: {error}") from None

    def add(
        self, name: str, scopes: Collection[str], expires: float | None = None, token: str | None = None
    ) -> str:
        """Make a key and return its token, which is kept nowhere; one that is given may come again."""
        if not _NAME.fullmatch(name):
            raise InvalidSetting(f"expected a name of up to 64 letters, digits, . _ or -, got {name!r}")
        unknown = [scope for scope in scopes if scope not in (*SCOPES, SIMULATE)]
        if unknown or not scopes:
            got = f"got {unknown[0]!r}" if unknown else "got none"
            raise InvalidSetting(f"expected scopes ({', '.join(SCOPES)}), {got}")
        with self._changed() as keys:
            if name in keys and token is None:
                raise InvalidSetting(
                    f"{self.path} has a key {name!r}: revoke it first, or choose another name", name
                )
            token = token or new_token()
            keys[name] = Key(name, hash_token(token), frozenset(scopes), time.time(), expires)
        return token

    def revoke(self, name: str) -> None:
        with self._changed() as keys:
            if keys.pop(name, None) is None:
                known = ", ".join(sorted(keys)) or "none"
                raise InvalidSetting(f"no key is called {name!r}; there are: {known}", name)

    def note(self, names: Collection[str], now: float) -> None:
        """These keys were used."""
        with self._changed() as keys:
            for name in keys.keys() & set(names):
                keys[name] = msgspec.structs.replace(keys[name], used=now)

    @property
    def version(self) -> tuple[int, int] | None:
        """Changes with the file; None while there is none."""
        try:
            found = self.path.stat()
        except _NONE:
            return None
        return found.st_ino, found.st_mtime_ns

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Key]]:
        """What the file holds, to be changed by one process at a time.

        If root changes it for a server that runs as another user, it goes to whom the folder belongs.
        """
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            keys = self.read()
            yield keys
            with write_atomically(self.path, 0o600) as file:
                text = msgspec.json.encode(keys, order="deterministic")
                file.write(msgspec.json.format(text) + b"\n")
                if os.geteuid() == 0:
                    owner = os.fstat(folder)
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        finally:
            os.close(folder)


class _Known:
    """Keys as they were read last; `proved` are headers that have shown a token."""

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self.keys = tuple(keys.values())
        self.proved: dict[bytes, Key] = {}


class Keys:
    """Lets requests in; a file that cannot be read leaves the keys as they were.

    Time never goes back while a process runs: a key that has ended stays so when a clock is set back.
    `unread` is the kind of error for which the file could not be read when it was looked at last.
    """

    def __init__(
        self, file: KeyFile, simulated: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self.file, self._simulated, self._clock = file, simulated, clock
        self._latest, self._noted = clock(), clock()
        self._used: set[str] = set()
        self.unread: str | None = None
        self._version = file.version
        self._known = _Known(file.read())

    def __len__(self) -> int:
        return len(self._known.keys)

    @property
    def now(self) -> float:
        self._latest = max(self._latest, self._clock())
        return self._latest

    def admit(self, header: bytes, scope: str) -> None:
        """Refuse an Authorization header without a key of this scope."""
        key = self._proved(header)
        if key is None:
            raise Unauthorized("a valid token is needed: Authorization: Bearer TOKEN")
        if key.expires is not None and self.now >= key.expires:
            raise Unauthorized(f"the key {key.name} has expired: fclub keys add makes another")
        if scope not in key.scopes or (scope == SIMULATE and not self._simulated):
            has = ", ".join(sorted(key.scopes))
            raise Forbidden(f"this needs the scope {scope}; the key {key.name} has {has}")
        self._used.add(key.name)

    def _proved(self, header: bytes) -> Key | None:
        """Whose token this is; all hashes are compared, in constant time.

        A header that has proved itself is remembered. A dictionary compares keyed hashes before it
        compares contents, so how long it takes says nothing about what is in it.
        """
        known = self._known
        key = known.proved.get(header)
        if key is None:
            scheme, _, token = header.decode("latin-1").partition(" ")
            given = hash_token(token)
            matches = [one for one in known.keys if hmac.compare_digest(given, one.hash)]
            if matches and scheme.lower() == "bearer":
                key = known.proved[header] = matches[0]
        return key

    def look(self) -> None:
        """Read the file again if it has changed, and note there what was used."""
        try:
            version = self.file.version
            if version != self._version:
                self._known = _Known(self.file.read())
                self._version = version
            self.unread = None
        except (OSError, InvalidFile) as error:
            self.unread = type(error).__name__
        if self._used and self.now - self._noted >= NOTE_SECONDS:
            used, self._used, self._noted = self._used, set(), self.now
            with suppress(OSError, InvalidFile):
                self.file.note(used, self.now)

    async def watch(self, monitor: Monitor) -> None:
        """Look again and again, beside the loop: a disk may be slow."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before, name = self.unread, self.file.path.name
            await asyncio.to_thread(self.look)
            if self.unread and not before:
                monitor.event("keys not read", logging.WARNING, file=name, error=self.unread)
            elif before and not self.unread:
                monitor.event("keys read again", file=name)


def keys_for(settings: LocalSettings | GlobalSettings) -> Keys:
    http = settings.http
    return Keys(KeyFile(keys_of(http.keys or settings.store)), http.simulated)
