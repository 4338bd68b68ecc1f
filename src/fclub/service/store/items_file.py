"""A catalogue as a CSV file: a column of ids, then one column for each feature."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fclub.core.inputs import MAX_ID, as_items
from fclub.core.types import Matrix
from fclub.errors import InvalidFeatures, InvalidFile

IDS = ("id", "item", "item_id")
CONSTANT = "constant"

AT_ONCE = 10_000
"""Items that are read at a time."""


def read_items(path: Path, dim: int) -> Iterator[tuple[list[str], Matrix]]:
    """Ids and features, some at a time; a fault is named with its line."""
    ids: list[str] = []
    rows: list[Matrix] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            records = csv.reader(file)
            head = next(records, [])
            if len(head) != dim + 1 or head[0] not in IDS:
                raise InvalidFile(
                    f"{path}: the first line must be {IDS[0]} and {dim} names of features"
                )
            line = records.line_num + 1
            for record in records:
                if len(ids) == AT_ONCE:
                    yield ids, np.concatenate(rows)
                    ids, rows = [], []
                try:
                    rows.append(_read(record, dim))
                except (ValueError, InvalidFeatures) as error:
                    raise InvalidFile(f"{path}, line {line}: {error}") from None
                ids.append(record[0])
                line = records.line_num + 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: {error}") from None
    if not ids:
        raise InvalidFile(f"{path}: there is no item")
    yield ids, np.concatenate(rows)


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


def _read(record: list[str], dim: int) -> Matrix:
    if len(record) != dim + 1:
        raise InvalidFeatures(f"expected {dim + 1} fields")
    return as_items(np.array([record[1:]], dtype=np.float64), dim)
