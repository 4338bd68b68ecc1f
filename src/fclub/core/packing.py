"""Named tuples of arrays as plain dictionaries, for files and stores."""

from __future__ import annotations

from typing import Any

import numpy as np


def flatten(state: Any, prefix: str = "") -> dict[str, Any]:
    """The arrays of a (nested) named tuple by dotted name; numbers are left out."""
    arrays: dict[str, Any] = {}
    for name, value in state._asdict().items():
        if isinstance(value, np.ndarray):
            arrays[prefix + name] = value
        elif isinstance(value, tuple):
            arrays |= flatten(value, f"{prefix}{name}.")
    return arrays


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
