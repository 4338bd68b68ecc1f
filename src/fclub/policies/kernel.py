"""Policies whose whole state is one named tuple of arrays, played by two kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from fclub.core.types import Matrix, Vector
from fclub.policies.base import Policy


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


class KernelPolicy(Policy):
    """Subclasses set `kernels` to (recommend, feedback) and `_state` in `_start`."""

    kernels: ClassVar[tuple[Callable[..., int], Callable[..., None]]]
    _state: Any

    def _recommend(self, user: int, items: Matrix) -> int:
        return self.kernels[0](self._state, user, items)

    def _update(self, user: int, x: Vector, y: float) -> None:
        self.kernels[1](self._state, user, x, y)

    def pack(self) -> Any:
        return self._state

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return flatten(self._state), {}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self._state = rebuild(self._state, arrays)
