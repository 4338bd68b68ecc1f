"""Large ratings files whose every line is plain, read in seconds by pyarrow where it is installed.

What is not plain (quotes, empty lines, another number of fields, what is no number or no UTF-8) is left
to the reader that goes line by line: it understands more, and names a fault with its line. Both give
the same ratings wherever this one gives any.
"""

from __future__ import annotations

import codecs
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fclub.core.types import Floats

LARGE = 1 << 22
"""Bytes from which on it is worth loading pyarrow."""

BLOCK = 1 << 24


class Layout(NamedTuple):
    """Lines of so many `fields` after `header` lines; `places` are those of user, item and rating."""

    separator: str
    header: int
    fields: int
    places: tuple[int, int, int]


class PlainColumns(NamedTuple):
    """Distinct ids of users and of items, and for each rating their positions and its value."""

    users: tuple[list[str], Any]
    items: tuple[list[str], Any]
    values: Floats


def read_plain(path: Path, layout: Layout) -> PlainColumns | None:
    """None where pyarrow is missing, or a line is not plain."""
    if find_spec("pyarrow") is None or not _is_plain(path, layout.header):
        return None
    import pyarrow
    import pyarrow.compute

    try:
        table = _table(path, layout)
    except pyarrow.ArrowInvalid:
        return None
    *between, users, items, values = table.columns
    if any(pyarrow.compute.any(pyarrow.compute.not_equal(gap, "")).as_py() for gap in between):
        return None
    numbers = values.to_numpy()
    found = PlainColumns(_ids(users), _ids(items), numbers)
    named = all(ids and all(ids) for ids, _ in found[:2])
    return found if named and np.isfinite(numbers).all() else None


def _is_plain(path: Path, header: int) -> bool:
    """Is it UTF-8 without quotes below the header, and does every carriage return end a line?"""
    decode, last = codecs.getincrementaldecoder("utf-8")().decode, b""
    with path.open("rb") as file:
        for _ in range(header):
            file.readline()
        while block := file.read(BLOCK):
            text = last + block
            whole = text.removesuffix(b"\r")
            if b'"' in block or whole.count(b"\r") != whole.count(b"\r\n"):
                return False
            last = text[len(whole) :]
            try:
                decode(block)
            except UnicodeDecodeError:
                return False
    return not last


def _table(path: Path, layout: Layout) -> Any:
    """The fields between the two halves of a `::`, then user, item and rating."""
    import pyarrow
    import pyarrow.csv

    width = len(layout.separator)
    names = [str(k) for k in range(width * (layout.fields - 1) + 1)]
    user, item, rating = (str(width * place) for place in layout.places)
    between = [name for k, name in enumerate(names) if k % width]
    ids = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    kinds = {user: ids, item: ids, rating: pyarrow.float64()} | dict.fromkeys(between, pyarrow.string())
    return pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(column_names=names, skip_rows=layout.header, block_size=BLOCK),
        pyarrow.csv.ParseOptions(
            delimiter=layout.separator[0], quote_char=False, ignore_empty_lines=False
        ),
        pyarrow.csv.ConvertOptions(
            column_types=kinds, include_columns=[*between, user, item, rating], null_values=[]
        ),
    )


def _ids(column: Any) -> tuple[list[str], Any]:
    whole = column.unify_dictionaries().combine_chunks()
    return [key.strip() for key in whole.dictionary.to_pylist()], whole.indices.to_numpy()
