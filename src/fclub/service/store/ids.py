"""Ids of many items by row, and the rows of ids, packed: a million texts as objects take 150 MB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from fclub.core.types import Flags, Indices

FEW = 20_000
"""Late ids that are kept as objects, whatever the number of packed ones."""


class Ids(Sequence[str]):
    """Texts that are added at the end and never change.

    Most are bytes in one buffer, found by their sorted hashes. Late ones are objects until there are
    many of them. An id may have several rows; whoever asks knows which of them are there.
    """

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends: Indices = np.zeros(1, dtype=np.int64)
        self._hashes: Indices = np.zeros(0, dtype=np.int64)
        self._rows: Indices = np.zeros(0, dtype=np.int64)
        self._late: list[str] = []
        self._late_row: dict[str, int] = {}

    @property
    def _packed(self) -> int:
        return len(self._ends) - 1

    def __len__(self) -> int:
        return self._packed + len(self._late)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(len(self)))]
        if not 0 <= row < len(self):
            raise IndexError(row)
        if row >= self._packed:
            return self._late[row - self._packed]
        return self._text[self._ends[row] : self._ends[row + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))

    def extend(self, ids: Sequence[str]) -> None:
        """Add ids; of those that are equal the last one is found first."""
        first = len(self)
        self._late += ids
        self._late_row |= zip(ids, range(first, first + len(ids)), strict=True)
        if len(self._late) > max(FEW, self._packed // 8):
            self._pack()

    def _pack(self) -> None:
        texts = [text.encode() for text in self._late]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64) + self._ends[-1]
        hashes = np.array([hash(text) for text in self._late], dtype=np.int64)
        rows = np.arange(self._packed, len(self))
        self._text += b"".join(texts)
        self._ends = np.concatenate([self._ends, ends])
        self._late, self._late_row = [], {}
        self._sort(np.concatenate([self._hashes, hashes]), np.concatenate([self._rows, rows]))

    def _sort(self, hashes: Indices, rows: Indices) -> None:
        order = np.argsort(hashes)
        self._hashes, self._rows = hashes[order], rows[order]

    def find(self, ids: Sequence[str], there: Flags) -> Indices:
        """The row of each id that is there, −1 where none is."""
        found = [self._late_row.get(key, -1) for key in ids]
        found = [row if row >= 0 and there[row] else -1 for row in found]
        rest = [k for k, row in enumerate(found) if row < 0]
        wanted = [hash(ids[k]) for k in rest]
        for k, code, place in zip(
            rest, wanted, np.searchsorted(self._hashes, wanted).tolist(), strict=True
        ):
            found[k] = self._among_equals(ids[k], code, place, there)
        return np.array(found, dtype=np.int64)

    def _among_equals(self, key: str, code: int, place: int, there: Flags) -> int:
        while place < len(self._hashes) and self._hashes[place] == code:
            row = int(self._rows[place])
            if there[row] and self[row] == key:
                return row
            place += 1
        return -1

    def keep(self, rows: Indices) -> Ids:
        """These rows alone, in their order."""
        kept, codes = Ids(), np.zeros(len(self), dtype=np.int64)
        codes[self._rows] = self._hashes
        codes[self._packed :] = [hash(text) for text in self._late]
        texts = [self[row].encode() for row in rows.tolist()]
        kept._text = bytearray(b"".join(texts))
        lengths = np.array([0, *map(len, texts)], dtype=np.int64)
        kept._ends = np.cumsum(lengths)
        kept._sort(codes[rows], np.arange(len(rows)))
        return kept
