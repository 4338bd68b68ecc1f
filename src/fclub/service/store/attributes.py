"""What items of a catalogue have beside their features, packed by row, and filters over it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import inf, nan
from operator import and_, or_
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from fclub.core.inputs import MAX_ID
from fclub.core.types import Flags, Floats, Indices
from fclub.errors import InvalidInput

MOST_WORDS = 100
"""Categories, tags or numbers of one item."""

MOST_CONDITIONS, DEEPEST = 200, 16
"""Of one filter."""

Word = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
Words = Annotated[tuple[Word, ...], Meta(max_length=MOST_WORDS)]
Number = TypeVar("Number", np.float64, np.int64)


class Attributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one item; times are seconds since 1970."""

    categories: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    numbers: dict[str, float] = {}
    available_from: float | None = None
    available_until: float | None = None


NONE = Attributes()
encode_attributes = msgspec.json.Encoder().encode
decode_attributes = msgspec.json.Decoder(Attributes).decode


class Filter(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"all_of": "and", "any_of": "or", "none_of": "not"},
):
    """A condition on items, of exactly one kind.

    `category` and `tag` hold for items that have them; `number` for items that have it, from `min` to
    `max`; `and`, `or` and `not` combine conditions.
    """

    category: Word | None = None
    tag: Word | None = None
    number: Word | None = None
    min: float | None = None
    max: float | None = None
    all_of: tuple[Filter, ...] | None = None
    any_of: tuple[Filter, ...] | None = None
    none_of: Filter | None = None

    def check(self) -> None:
        """Refuse what is no condition, or too much of one."""
        for number, (depth, one) in enumerate(self._walk(1), start=1):
            if number > MOST_CONDITIONS or depth > DEEPEST:
                limits = f"{MOST_CONDITIONS} conditions, nested {DEEPEST} deep"
                raise InvalidInput(f"a filter has at most {limits}")
            one._check_one()

    def _walk(self, depth: int) -> Iterator[tuple[int, Filter]]:
        yield depth, self
        for part in (*(self.all_of or ()), *(self.any_of or ())):
            yield from part._walk(depth + 1)
        if self.none_of is not None:
            yield from self.none_of._walk(depth + 1)

    def _check_one(self) -> None:
        kinds = (self.category, self.tag, self.number, self.all_of, self.any_of, self.none_of)
        given = sum(kind is not None for kind in kinds)
        if given != 1:
            names = "category, tag, number, and, or, not"
            raise InvalidInput(f"expected exactly one of {names} in a condition, got {given}")
        if self.number is None and not (self.min is None and self.max is None):
            raise InvalidInput("min and max belong to a condition on a number")


class _Column:
    """Values by row, of which there may be fewer than rows: the others are `default`."""

    def __init__(self, default: float) -> None:
        self._default, self._values = default, np.full(0, default)

    def put(self, row: int, value: float) -> None:
        self._values = _room(self._values, row + 1, self._default)
        self._values[row] = value

    def read(self, count: int) -> Floats:
        self._values = _room(self._values, count, self._default)
        return self._values[:count]

    def keep(self, rows: Indices, count: int) -> _Column:
        kept = _Column(self._default)
        kept._values = self.read(count)[rows]
        return kept


def _room(values: Any, count: int, default: float) -> Any:
    """The same values with room for so many; twice as much as before, if there was too little."""
    if count <= len(values):
        return values
    more = np.full(max(count, 2 * len(values)) - len(values), default, dtype=values.dtype)
    return np.concatenate([values, more])


class Columns:
    """Attributes by row of a catalogue: rows are added at the end, and never change.

    The categories and tags of row r are `_codes[_ends[r] : _ends[r + 1]]`: categories have even
    numbers, tags odd ones.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], int] = {}
        self._codes: Indices = np.zeros(0, dtype=np.int64)
        self._ends: Indices = np.zeros(1, dtype=np.int64)
        self._count = 0
        self._numbers: dict[str, _Column] = {}
        self._since, self._until = _Column(-inf), _Column(inf)
        self._timed = False

    def __len__(self) -> int:
        return self._count

    def extend(self, rows: list[Attributes]) -> None:
        codes, ends, used = [], [], int(self._ends[self._count])
        for row, one in enumerate(rows, start=self._count):
            codes += [self._code(name, False) for name in one.categories]
            codes += [self._code(name, True) for name in one.tags]
            ends.append(used + len(codes))
            if one is not NONE:
                self._put(row, one)
        self._codes = _room(self._codes, used + len(codes), 0)
        self._codes[used : used + len(codes)] = codes
        self._ends = _room(self._ends, self._count + len(rows) + 1, 0)
        self._ends[self._count + 1 : self._count + len(rows) + 1] = ends
        self._count += len(rows)

    def _put(self, row: int, one: Attributes) -> None:
        for name, value in one.numbers.items():
            self._numbers.setdefault(name, _Column(nan)).put(row, value)
        for column, time in ((self._since, one.available_from), (self._until, one.available_until)):
            if time is not None:
                self._timed = True
                column.put(row, time)

    def _code(self, name: str, tag: bool) -> int:
        return self._known.setdefault((name, tag), 2 * len(self._known) + tag)

    def keep(self, rows: Indices) -> Columns:
        """These rows alone, in their order."""
        kept, ends = Columns(), self._ends[: self._count + 1]
        lengths = np.diff(ends)[rows]
        kept._ends = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(ends[rows] - kept._ends[:-1], lengths) + np.arange(kept._ends[-1])
        kept._codes, kept._known, kept._count = self._codes[places], self._known, len(rows)
        kept._numbers = {name: one.keep(rows, self._count) for name, one in self._numbers.items()}
        kept._since = self._since.keep(rows, self._count)
        kept._until = self._until.keep(rows, self._count)
        kept._timed = self._timed
        return kept

    def by_category(self, rows: Indices, values: Floats) -> dict[str, Floats]:
        """Values of these rows, one column for each, added up by category."""
        lengths = np.diff(self._ends[: self._count + 1])[rows]
        before = np.cumsum(lengths) - lengths
        places = np.repeat(self._ends[rows] - before, lengths) + np.arange(lengths.sum())
        sums = np.zeros((2 * len(self._known), len(values)))
        np.add.at(sums, self._codes[places], np.repeat(values, lengths, axis=1).T)
        names = {name: sums[code] for (name, tag), code in self._known.items() if not tag}
        return {name: found for name, found in names.items() if found.any()}

    def categories(self, row: int) -> list[int]:
        """The categories of an item, as numbers."""
        codes: list[int] = self._codes[self._ends[row] : self._ends[row + 1]].tolist()
        return [code for code in codes if code % 2 == 0]

    def available(self, now: float) -> Flags | None:
        """Which items are available at a time; None: all are, always."""
        if not self._timed:
            return None
        return (self._since.read(self._count) <= now) & (now < self._until.read(self._count))

    def with_word(self, name: str, tag: bool = False) -> Flags:
        """Which items have a category, or a tag."""
        mask, code = np.zeros(self._count, dtype=np.bool_), self._known.get((name, tag))
        if code is not None:
            ends = self._ends[: self._count + 1]
            places = np.flatnonzero(self._codes[: ends[-1]] == code)
            mask[np.searchsorted(ends, places, side="right") - 1] = True
        return mask

    def mask(self, one: Filter) -> Flags:
        """Which items a filter holds for."""
        if one.category is not None:
            return self.with_word(one.category)
        if one.tag is not None:
            return self.with_word(one.tag, tag=True)
        if one.number is not None:
            return self._between(one.number, one.min, one.max)
        if one.none_of is not None:
            return ~self.mask(one.none_of)
        if one.all_of is not None:
            every = np.ones(self._count, dtype=np.bool_)
            return reduce(and_, map(self.mask, one.all_of), every)
        return reduce(or_, map(self.mask, one.any_of or ()), np.zeros(self._count, dtype=np.bool_))

    def _between(self, name: str, least: float | None, most: float | None) -> Flags:
        if name not in self._numbers:
            return np.zeros(self._count, dtype=np.bool_)
        values = self._numbers[name].read(self._count)
        return (values >= (-inf if least is None else least)) & (
            values <= (inf if most is None else most)
        )
