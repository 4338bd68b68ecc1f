"""The decisions of a local server as a log that `fclub replay` reads; the server may be running.

Only decisions whose probability was kept can be evaluated, and of those only the ones with a reward.
The log has two kinds of lines: `{"offer": number, "items": [...]}` names what was on offer, once;
`{"user", "item", "reward", "propensity", "offer", "without"}` is a round. Users appear by number.
Items appear by id; one that had several features has a name for each, and its features under that name.
"""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from fclub.errors import InvalidFile
from fclub.service.store.backup import describe, read_only, written_whole
from fclub.service.store.decisions import Own, Part, Whole, decode_offer
from fclub.service.store.store import VERSION


class Exported(NamedTuple):
    """How many rounds and items were written, and how many decisions have no reward yet."""

    rounds: int
    items: int
    unanswered: int


class Names:
    """A name for every pair of an item's id and its features."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, bytes], str] = {}
        self.features: dict[str, bytes] = {}

    def of(self, item: str, features: bytes) -> str:
        name = self._names.get((item, features))
        if name is None:
            name, other = item, 1
            while name in self.features:
                other += 1
                name = f"{item}#{other}"
            self._names[item, features], self.features[name] = name, features
        return name


class CatalogueHistory:
    """The catalogue as it was at any version that an offer has."""

    def __init__(self, store: sqlite3.Connection) -> None:
        self._spans: dict[str, list[tuple[int, float, bytes]]] = {}
        for key, since, until, features in store.execute(
            "SELECT id, since, until, features FROM former "
            "UNION ALL SELECT id, since, 9e999, features FROM items ORDER BY id"
        ):
            self._spans.setdefault(key, []).append((since, until, features))

    def features(self, key: str, version: int) -> bytes | None:
        """None: it was not there."""
        spans = self._spans.get(key, [])
        return next((x for since, until, x in spans if since <= version < until), None)

    def all(self, version: int) -> Iterator[tuple[str, bytes]]:
        for key in self._spans:
            features = self.features(key, version)
            if features is not None:
                yield key, features


class _Writer:
    """Writes rounds, and offers before they are first used."""

    def __init__(self, file: TextIO, shelf: CatalogueHistory) -> None:
        self._file, self._shelf = file, shelf
        self.names = Names()
        self._offers: dict[bytes | int, int] = {}
        self.rounds = 0

    def write(self, row: int, item: str, reward: float, chance: float, *offered: Any) -> None:
        features, version, body = offered
        number, without = self._offer(version, body)
        line = {
            "user": str(row),
            "item": self.names.of(item, features),
            "reward": reward,
            "propensity": chance,
            "offer": number,
        }
        self._line(line | ({"without": without} if without else {}))
        self.rounds += 1

    def _offer(self, version: int, body: bytes) -> tuple[int, list[str]]:
        """The number of an offer, and what has to be left out of it."""
        offer, without = decode_offer(body), []
        key: bytes | int = body
        match offer:
            case Whole():
                key = version
                without = [self._known(item, version) for item in offer.without]
            case Part():
                key = body + version.to_bytes(8, "big")
        if key not in self._offers:
            self._offers[key] = len(self._offers)
            items = list(self._items(offer, version))
            self._line({"offer": self._offers[key], "items": items})
        return self._offers[key], without

    def _items(self, offer: Whole | Part | Own, version: int) -> Iterable[str]:
        match offer:
            case Whole():
                return (self.names.of(*item) for item in self._shelf.all(version))
            case Part():
                return (self._known(item, version) for item in offer.ids)
            case Own():
                size = len(offer.features) // len(offer.ids)
                rows = (offer.features[k * size : (k + 1) * size] for k in range(len(offer.ids)))
                return map(self.names.of, offer.ids, rows)

    def _known(self, item: str, version: int) -> str:
        features = self._shelf.features(item, version)
        if features is None:
            raise InvalidFile(f"item {item!r} was on offer, but is not in version {version}")
        return self.names.of(item, features)

    def _line(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value) + "\n")


ROUNDS = (
    "SELECT row, item, reward, chance, features, version, body "
    "FROM offers JOIN decisions ON id = decision WHERE reward IS NOT NULL ORDER BY id"
)
OPEN = "SELECT count(*) FROM offers JOIN decisions ON id = decision WHERE reward IS NULL"


def export_log(path: Path, log: Path, items: Path) -> Exported:
    """Write the rounds and the features of their items; only the owner may read the files."""
    found = describe(path)
    if found["kind"] != "local" or found["version"] != VERSION:
        raise InvalidFile(f"{path} is not the store of a local server of this version")
    for target in (log, items):
        if target.exists():
            raise InvalidFile(f"{target} exists already")
    with written_whole(log) as first, written_whole(items) as second:
        try:
            with closing(read_only(path)) as store, first.open("w", encoding="utf-8") as file:
                store.execute("BEGIN")  # one state of the store, whatever its server does meanwhile
                writer = _Writer(file, CatalogueHistory(store))
                for stored in store.execute(ROUNDS):
                    writer.write(*stored)
                (unanswered,) = store.execute(OPEN).fetchone()
        except sqlite3.Error as error:
            raise InvalidFile(f"{path}: {error}") from None
        with second.open("w", encoding="utf-8", newline="") as file:
            _write_items(file, writer.names.features)
    return Exported(writer.rounds, len(writer.names.features), unanswered)


def _write_items(file: TextIO, features: dict[str, bytes]) -> None:
    lines = csv.writer(file, lineterminator="\n")
    dim = len(next(iter(features.values()), b"")) // 8
    lines.writerow(["id", *(f"x{k}" for k in range(dim))])
    lines.writerows([name, *np.frombuffer(row).tolist()] for name, row in features.items())
