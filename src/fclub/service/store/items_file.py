"""A catalogue as a CSV file: a column of ids, then one column for each feature."""

from __future__ import annotations

import csv
from itertools import islice
from pathlib import Path

import numpy as np

from fclub.core.inputs import as_items
from fclub.core.types import Matrix
from fclub.errors import InvalidFeatures, InvalidFile

IDS = ("id", "item", "item_id")


AT_ONCE = 10_000
"""Lines that are texts at a time: as numbers they take a tenth of the memory."""


def read_items(path: Path, dim: int) -> tuple[list[str], Matrix]:
    """Ids and features, each id once; a fault is named with its line."""
    ids: list[str] = []
    parts: list[Matrix] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            head = next(lines, [])
            if len(head) != dim + 1 or head[0] not in IDS:
                raise InvalidFile(
                    f"{path}: the first line must be {IDS[0]} and {dim} names of features"
                )
            while rows := list(islice(lines, AT_ONCE)):
                parts.append(_features(path, rows, len(ids) + 2, dim))
                ids += [row[0] for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: {error}") from None
    if not ids:
        raise InvalidFile(f"{path}: there is no item")
    if not all(ids) or len(set(ids)) != len(ids):
        raise InvalidFile(f"{path}: every item needs an id of its own")
    return ids, np.concatenate(parts)


def _features(path: Path, rows: list[list[str]], first: int, dim: int) -> Matrix:
    """All at once; only when that fails, line by line to find out where."""
    try:
        return _read(rows, dim)
    except (ValueError, InvalidFeatures):
        for line, row in enumerate(rows, start=first):
            try:
                _read([row], dim)
            except (ValueError, InvalidFeatures) as error:
                raise InvalidFile(f"{path}, line {line}: {error}") from None
        raise


def _read(rows: list[list[str]], dim: int) -> Matrix:
    if {len(row) for row in rows} != {dim + 1}:
        raise InvalidFeatures(f"expected {dim + 1} fields")
    return as_items(np.array([row[1:] for row in rows], dtype=np.float64), dim)
