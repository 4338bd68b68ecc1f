"""Ratings files of any common layout, read line by line so that a fault can be named.

Understood: CSV, semicolon- and tab-separated text, with a header or as user, item, rating without one
(MovieLens-100k, -1M, MovieTweetings), JSON lines (Yelp), Parquet where pandas can read it, and data
frames. Where there are no ratings (Delicious), each line says that a user chose an item, and counts 1.
"""

from __future__ import annotations

import csv
import hashlib
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fclub.core.types import Floats, Indices
from fclub.errors import ExtraMissing, InvalidFile, InvalidInput, InvalidRatings
from fclub.extras import need

USER_NAMES = ("user", "userid", "user_id")
ITEM_NAMES = (
    *("item", "itemid", "item_id", "movieid", "movie_id"),
    *("business_id", "artistid", "bookmarkid"),
)
RATING_NAMES = ("rating", "stars", "weight", "value", "score")
SEPARATORS = ("::", "\t", ",", ";")

Row = tuple[str, str, float]


@dataclass(frozen=True)
class Ratings:
    """Ratings in file order; users and items are numbered by ascending id."""

    users: Indices
    items: Indices
    values: Floats
    user_ids: Any
    item_ids: Any

    def __len__(self) -> int:
        return len(self.values)

    @property
    def digest(self) -> str:
        """Digest of all users, items and ratings."""
        found = hashlib.sha256()
        for part in (self.user_ids, self.item_ids, self.users, self.items, self.values):
            found.update(np.ascontiguousarray(part).tobytes())
        return found.hexdigest()[:16]

    def matrix(self, binary: bool = True) -> Any:
        """Users × items as a sparse matrix: 1 where there is a rating, or the ratings themselves."""
        from scipy.sparse import csr_array

        values = np.ones(len(self)) if binary else self.values
        shape = (len(self.user_ids), len(self.item_ids))
        return csr_array((values, (self.users, self.items)), shape=shape)

    def keep(self, rows: Any) -> Ratings:
        """Only these ratings (a mask or positions), users and items numbered anew."""
        users, user_of = np.unique(self.users[rows], return_inverse=True)
        items, item_of = np.unique(self.items[rows], return_inverse=True)
        ids = (self.user_ids[users], self.item_ids[items])
        return Ratings(user_of.astype(np.int64), item_of.astype(np.int64), self.values[rows], *ids)


Column = tuple[Sequence[str], Any]
"""Ids, and for each rating the position of its own."""


@dataclass
class _Read:
    """Ratings as they were found, the first of them in line `first_line`."""

    path: object
    first_line: int
    columns: tuple[Column, Column]
    values: Floats

    def finish(self, duplicates: str) -> Ratings:
        if not len(self.values):
            raise InvalidRatings(self.path, self.first_line, "there is no rating")
        (user_ids, users), (item_ids, items) = (_by_id(*column) for column in self.columns)
        if len(user_ids) == 1:
            last = self.first_line + len(self.values) - 1
            raise InvalidRatings(self.path, last, "all ratings are of one user, two are needed")
        ratings = Ratings(users, items, self.values, user_ids, item_ids)
        return self._without_repeats(ratings, duplicates)

    def _without_repeats(self, ratings: Ratings, duplicates: str) -> Ratings:
        pairs = ratings.users * len(ratings.item_ids) + ratings.items
        if not (np.diff(np.sort(pairs)) == 0).any():
            return ratings
        order = np.argsort(pairs, kind="stable")
        again = np.flatnonzero(np.diff(pairs[order]) == 0)
        if duplicates == "last":
            kept = np.ones(len(ratings), dtype=np.bool_)
            kept[order[again]] = False
            return ratings.keep(kept)
        second = int(order[again + 1].min())
        before = int(np.flatnonzero(pairs == pairs[second])[0])
        raise InvalidRatings(
            self.path,
            self.first_line + second,
            f"user {ratings.user_ids[ratings.users[second]]} rated item "
            f"{ratings.item_ids[ratings.items[second]]} already in line {self.first_line + before}; "
            "expected one, or duplicates=last",
        )


@dataclass
class _Gathered:
    """Ids as they come, numbered by first appearance: one short integer per rating."""

    numbers: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))
    columns: tuple[array[int], array[int]] = field(default_factory=lambda: (array("i"), array("i")))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, user: str, item: str, value: float) -> None:
        users, items = self.numbers
        self.columns[0].append(users.setdefault(user, len(users)))
        self.columns[1].append(items.setdefault(item, len(items)))
        self.values.append(value)

    def read(self, path: object, first_line: int) -> _Read:
        users, items = (
            (list(numbers), np.frombuffer(column, dtype=np.int32) if column else np.zeros(0, np.int32))
            for numbers, column in zip(self.numbers, self.columns, strict=True)
        )
        return _Read(path, first_line, (users, items), np.array(self.values))


def _by_id(keys: Sequence[str], column: Any) -> tuple[Any, Indices]:
    """Distinct ids in ascending order (as numbers where all are), and each rating's position there."""
    whole = all(key.isdecimal() and len(key) < 19 for key in keys)
    ids = np.array([int(key) for key in keys] if whole else list(keys))
    distinct, position = np.unique(ids, return_inverse=True)
    return distinct, position.astype(np.int64)[column]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines; a blank line may only be the last."""
    blank = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if blank:
                raise InvalidRatings(path, blank, "the line is empty")
            try:
                line = raw.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InvalidRatings(path, number, f"not UTF-8 text: {error.reason}") from None
            if line:
                yield number, line.removeprefix("\ufeff") if number == 1 else line
            else:
                blank = number


def _split(line: str, separator: str) -> list[str]:
    if '"' in line and len(separator) == 1:
        return next(csv.reader([line], delimiter=separator))
    return line.split(separator)


NONE = -1
"""The place of the rating where lines have none."""


def _columns(path: object, names: Sequence[str], rated: bool = True) -> tuple[int, int, int]:
    """Positions of user, item and rating in a header."""
    plain = [name.strip().lower() for name in names]
    found = []
    for what, known in (("user", USER_NAMES), ("item", ITEM_NAMES), ("rating", RATING_NAMES)):
        places = [k for k, name in enumerate(plain) if name in known]
        if what == "rating" and not rated:
            places = [NONE]
        if not places:
            reason = f"no {what} column (one of {', '.join(known)}) in the header {', '.join(names)}"
            raise InvalidRatings(path, 1, reason)
        found.append(places[0])
    return found[0], found[1], found[2]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class Layout(NamedTuple):
    """Lines of so many `fields` after `header` lines; `places` are those of user, item and rating."""

    separator: str
    header: int
    fields: int
    places: tuple[int, int, int]


def _layout(path: Path, first: str, rated: bool) -> Layout:
    """Judged by line 1."""
    separator = next((s for s in SEPARATORS if s in first), None)
    if separator is None:
        raise InvalidRatings(path, 1, "no separator (one of ::, tab, comma, semicolon)")
    head = _split(first, separator)
    header = not rated or len(head) < 3 or not _is_number(head[2])
    places = _columns(path, head, rated) if header else (0, 1, 2)
    return Layout(separator, int(header), len(head), places)


def _separated(layout: Layout) -> Callable[[str], Row]:
    """How to take a line apart."""
    u, i, r = layout.places

    def parse(line: str) -> Row:
        parts = _split(line, layout.separator)
        if len(parts) != layout.fields:
            raise ValueError(f"{len(parts)} fields where line 1 has {layout.fields}")
        return parts[u].strip(), parts[i].strip(), 1.0 if r == NONE else float(parts[r])

    return parse


class _Review(msgspec.Struct):
    user_id: str
    business_id: str
    stars: float


def _json_lines() -> Callable[[str], Row]:
    decoder = msgspec.json.Decoder(_Review)

    def parse(line: str) -> Row:
        review = decoder.decode(line)
        return review.user_id, review.business_id, review.stars

    return parse


def _read_text(path: Path, rated: bool) -> _Read:
    if path.suffix in (".json", ".jsonl"):
        return _read_lines(path, 1, _json_lines())
    first = next(numbered_lines(path), None)
    if first is None:
        raise InvalidRatings(path, 1, "the file is empty")
    layout = _layout(path, first[1], rated)
    return _read_lines(path, 1 + layout.header, _separated(layout))


def _read_lines(path: Path, first_line: int, parse: Callable[[str], Row]) -> _Read:
    gathered = _Gathered()
    for number, line in numbered_lines(path):
        if number < first_line:
            continue
        try:
            user, item, value = parse(line)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidRatings(path, number, str(error)) from None
        if not (user and item and math.isfinite(value)):
            raise InvalidRatings(path, number, "user and item must be named, the rating be finite")
        gathered.add(user, item, value)
    return gathered.read(path, first_line)


def _read_parquet(path: Path) -> _Read:
    pandas = need("pandas", f"reading {path}", "pandas")
    try:
        frame = pandas.read_parquet(path)
    except ImportError:  # pandas is here, pyarrow is not
        raise ExtraMissing(f"reading {path}", "pandas") from None
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path} is not a Parquet file: {error}") from None
    return _gather(path, frame)


def _missing(key: object) -> bool:
    """Data frames have several values that stand for none."""
    return not key if isinstance(key, str) else str(key) in ("None", "nan", "<NA>", "NaT")


def _gather(path: object, frame: Any) -> _Read:
    """Rows count as lines, the first being line 1."""
    names = list(frame.columns)
    columns = [frame[names[k]] for k in _columns(path, [str(name) for name in names])]
    plain = _plain_columns(*columns)
    if plain is not None:
        return _Read(path, 1, *plain)
    gathered = _Gathered()
    for number, (user, item, value) in enumerate(zip(*columns, strict=True), 1):
        if not _is_number(str(value)):
            raise InvalidRatings(path, number, f"rating {value!r} is not a finite number")
        if _missing(user) or _missing(item):
            raise InvalidRatings(path, number, "user and item must be named")
        gathered.add(str(user), str(item), float(value))
    return gathered.read(path, 1)


def _plain_columns(users: Any, items: Any, values: Any) -> tuple[tuple[Column, Column], Floats] | None:
    """Whole numbers as ids and finite ratings need no look at every row."""
    users, items, values = np.asarray(users), np.asarray(items), np.asarray(values)
    whole = users.dtype.kind in "iu" and items.dtype.kind in "iu"
    if not (whole and values.dtype.kind in "iuf" and np.isfinite(values).all()):
        return None
    keys, places = zip(*(np.unique(ids, return_inverse=True) for ids in (users, items)), strict=True)
    names = [[str(key) for key in found.tolist()] for found in keys]
    return ((names[0], places[0]), (names[1], places[1])), values.astype(np.float64)


def ratings_of(frame: Any, duplicates: str = "refuse") -> Ratings:
    """The ratings in a data frame of pandas or Polars; its columns are called as in a file."""
    if not hasattr(frame, "columns"):
        raise InvalidInput("ratings come from a file or a data frame with named columns", frame)
    return _gather("the data frame", frame).finish(duplicates)


def read_ratings(path: object, duplicates: str = "refuse", rated: bool = True) -> Ratings:
    """The ratings in a file; `duplicates="last"` keeps a user's last rating of an item.

    Unless its lines are `rated`, each says that a user chose an item.
    """
    source = Path(str(path))
    if not source.is_file():
        raise InvalidFile(f"there is no file {source}")
    found = _read_parquet(source) if source.suffix == ".parquet" else _read_text(source, rated)
    return found.finish(duplicates)
