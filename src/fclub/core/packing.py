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
    """The same named tuple with its arrays replaced by those of `flatten`."""
    changes: dict[str, Any] = {}
    for name, value in state._asdict().items():
        if isinstance(value, np.ndarray):
            changes[name] = arrays[prefix + name]
        elif isinstance(value, tuple):
            changes[name] = rebuild(value, arrays, f"{prefix}{name}.")
    return state._replace(**changes)
