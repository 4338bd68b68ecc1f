"""A catalogue as a CSV file: a column of ids, then one column for each feature."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fclub.core.inputs import as_items
from fclub.core.types import Matrix
from fclub.errors import InvalidFeatures, InvalidFile

IDS = ("id", "item", "item_id")


def read_items(path: Path, dim: int) -> tuple[list[str], Matrix]:
    """Ids and features, each id once; a fault is named with its line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            head = next(lines, [])
            if len(head) != dim + 1 or head[0] not in IDS:
                raise InvalidFile(
                    f"{path}: the first line must be {IDS[0]} and {dim} names of features"
                )
            rows = list(lines)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: {error}") from None
    wrong = next((place for place, row in enumerate(rows) if len(row) != dim + 1), None)
    if wrong is not None:
        raise InvalidFile(f"{path}, line {wrong + 2}: expected {dim + 1} fields")
    if not rows:
        raise InvalidFile(f"{path}: there is no item")
    ids = [row[0] for row in rows]
    if not all(ids) or len(set(ids)) != len(ids):
        raise InvalidFile(f"{path}: every item needs an id of its own")
    return ids, _features(path, rows, dim)


def _features(path: Path, rows: list[list[str]], dim: int) -> Matrix:
    """All at once; only when that fails, line by line to find out where."""
    try:
        return as_items(np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, dim), dim)
    except (ValueError, InvalidFeatures):
        for place, row in enumerate(rows):
            try:
                as_items(np.array([row[1:]], dtype=np.float64), dim)
            except (ValueError, InvalidFeatures) as error:
                raise InvalidFile(f"{path}, line {place + 2}: {error}") from None
        raise
