"""Named tuples of arrays: as plain dictionaries for files, and with one row more; triangles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from fclub.core.types import Indices

State = TypeVar("State", bound=Any)
LEAST_ROOM = 8
LARGE, AHEAD = 1 << 16, 64
"""From so many rows on a room is so many times larger: memory that nothing was written to yet is only
promised, and to move a million rows would stop a server for a second."""


def flatten(state: Any, prefix: str = "") -> dict[str, Any]:
    """The arrays of a (nested) named tuple by dotted name; numbers are left out."""
    arrays: dict[str, Any] = {}
    for name, value in state._asdict().items():
        if isinstance(value, np.ndarray):
            arrays[prefix + name] = value
        elif isinstance(value, tuple):
            arrays |= flatten(value, f"{prefix}{name}.")
    return arrays


def under(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """The same arrays with this prefix before their names."""
    return {prefix + name: array for name, array in arrays.items()}


def inside(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays whose names have this prefix, without it: the inverse of `under`."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def rebuild(state: Any, arrays: dict[str, Any], prefix: str = "") -> Any:
    """The same named tuple with its arrays replaced by those of `flatten`.

    Only the number of rows may differ; anything else is not of this state, and a ValueError.
    """
    changes: dict[str, Any] = {}
    for name, value in state._asdict().items():
        if isinstance(value, np.ndarray):
            changes[name] = _like(value, arrays[prefix + name], prefix + name)
        elif isinstance(value, tuple):
            changes[name] = rebuild(value, arrays, f"{prefix}{name}.")
    return state._replace(**changes)


def _like(old: Any, new: Any, name: str) -> Any:
    if new.dtype != old.dtype or new.shape[1:] != old.shape[1:] or new.ndim != old.ndim:
        raise ValueError(f"{name} is {new.dtype}{new.shape}, expected {old.dtype} rows {old.shape[1:]}")
    return new


def with_row(state: State, room: State) -> tuple[State, State]:
    """The state with one row more, and the room that it is the beginning of.

    A new row holds zeros. When the room is full everything moves to one of at least twice the size, so
    that a row costs the same on average however many there are.
    """
    rows = _rows(state)
    if _rows(room) == rows:
        room = larger_room(state)
    return _map(lambda array: array[: rows + 1], room), room


def larger_room(state: State) -> State:
    """The same rows at the beginning of a room that has at least as many more."""
    rows = _rows(state)
    if rows >= LARGE:
        # Where the system promises no more memory than it has, twice the size must do.
        with suppress(MemoryError):
            return _moved(state, AHEAD * rows)
    return _moved(state, max(LEAST_ROOM, 2 * rows))


def _moved(state: State, rows: int) -> State:
    longer: State = _map(lambda array: _longer(array, rows), state)
    return longer


def with_room(state: State) -> tuple[State, State]:
    """The same state at the beginning of a room; of a large one at once, before anybody waits."""
    if _rows(state) < LARGE:
        return state, state
    room = larger_room(state)
    return _map(lambda array: array[: _rows(state)], room), room


def _rows(state: Any) -> int:
    return len(next(iter(flatten(state).values())))


def _longer(array: Any, rows: int) -> Any:
    longer = np.zeros((rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _map(change: Callable[[Any], Any], state: Any) -> Any:
    """The same named tuple with its arrays changed."""
    changes: dict[str, Any] = {}
    for name, value in state._asdict().items():
        array = isinstance(value, np.ndarray)
        changes[name] = change(value) if array else _map(change, value)
    return state._replace(**changes)


@lru_cache(maxsize=64)
def triangle_of(dim: int) -> tuple[Indices, Indices]:
    """Rows and columns of the upper triangle."""
    rows, columns = np.triu_indices(dim)
    return rows, columns


@lru_cache(maxsize=64)
def places_of(dim: int) -> Indices:
    """Where in the triangle each entry of the symmetric matrix is."""
    rows, columns = triangle_of(dim)
    places = np.empty((dim, dim), dtype=np.int64)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    return places
