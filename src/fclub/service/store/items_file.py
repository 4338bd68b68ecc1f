"""A catalogue as a CSV file: a column of ids, then one column for each feature."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

import numpy as np

from fclub.core.inputs import MAX_ID, as_items
from fclub.core.types import Matrix
from fclub.errors import InvalidFeatures, InvalidFile

IDS = ("id", "item", "item_id")
CONSTANT = "constant"


AT_ONCE = 10_000
"""Lines that are texts at a time: as numbers they take a tenth of the memory."""


class Reader(Protocol):
    """What `csv.reader` gives."""

    line_num: int

    def __next__(self) -> list[str]: ...


def read_items(path: Path, dim: int) -> Iterator[tuple[list[str], Matrix]]:
    """Ids and features, some at a time; a fault is named with its line."""
    line = 2
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head = next(csv.reader(file), [])
            if len(head) != dim + 1 or head[0] not in IDS:
                raise InvalidFile(
                    f"{path}: the first line must be {IDS[0]} and {dim} names of features"
                )
            while lines := list(islice(file, AT_ONCE)):
                try:
                    yield _read_plain(lines, dim)
                    line += len(lines)
                except (ValueError, InvalidFeatures, DeprecationWarning):
                    records = csv.reader(chain(lines, file))
                    yield _read_any(path, records, len(lines), line, dim)
                    line += records.line_num
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: {error}") from None
    if line == 2:
        raise InvalidFile(f"{path}: there is no item")


def shape_of_items(path: Path) -> tuple[int, float | None]:
    """The number of features; and the last one's value, if its column says that it is constant."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: {error}") from None
    dim = len(head) - 1
    if dim < 1:
        raise InvalidFile(f"{path}: the first line must be {IDS[0]} and names of features")
    _, rows = next(read_items(path, dim))
    return dim, float(rows[0, -1]) if head[-1] == CONSTANT else None


def check_items_file(path: Path, dim: int) -> Iterator[tuple[list[str], Matrix]]:
    """As `read_items`, and every item must have an id of its own."""
    known: set[str] = set()
    count = 0
    for ids, rows in read_items(path, dim):
        known |= set(ids)
        count += len(ids)
        if "" in known or len(known) < count:
            raise InvalidFile(f"{path}: every item needs an id of its own")
        if len(max(ids, key=len)) > MAX_ID:
            raise InvalidFile(f"{path}: an id has at most {MAX_ID} characters")
        yield ids, rows


def _read_any(
    path: Path, records: Reader, lines: int, first: int, dim: int
) -> tuple[list[str], Matrix]:
    """Record by record, to take quotes apart or to find out where a fault is."""
    ids: list[str] = []
    rows: list[Matrix] = []
    while records.line_num < lines:
        line = first + records.line_num
        row = next(records)
        try:
            rows.append(_read(row, dim))
        except (ValueError, InvalidFeatures) as error:
            raise InvalidFile(f"{path}, line {line}: {error}") from None
        ids.append(row[0])
    return ids, np.concatenate(rows)


def _read_plain(lines: list[str], dim: int) -> tuple[list[str], Matrix]:
    """Without quotes, a line is an id and the numbers behind its first comma."""
    parts = [line.rstrip("\r\n").partition(",") for line in lines]
    texts = [numbers for _, _, numbers in parts]
    if any(text.count(",") != dim - 1 or '"' in text for text in texts):
        raise ValueError("not as plain as that")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        values = np.fromstring(",".join(texts), sep=",")
    if len(values) != dim * len(lines) or any('"' in key for key, _, _ in parts):
        raise ValueError("not as plain as that")
    return [key for key, _, _ in parts], as_items(values.reshape(-1, dim), dim)


def _read(row: list[str], dim: int) -> Matrix:
    if len(row) != dim + 1:
        raise InvalidFeatures(f"expected {dim + 1} fields")
    return as_items(np.array([row[1:]], dtype=np.float64), dim)
