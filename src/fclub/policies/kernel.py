"""Policies whose whole state is one named tuple of arrays, played by two kernels."""

from __future__ import annotations

from typing import Any

from fclub.core.packing import flatten, rebuild
from fclub.core.types import Matrix, Vector
from fclub.policies.base import Policy
from fclub.protocol.seam import Kernels, State


class KernelPolicy(Policy):
    """Subclasses set `kernels` to (recommend, feedback) and `_state` in `_start`."""

    kernels: Kernels
    _state: Any

    def _recommend(self, user: int, items: Matrix) -> int:
        return self.kernels[0](self._state, user, items)

    def _update(self, user: int, x: Vector, y: float) -> None:
        self.kernels[1](self._state, user, x, y)

    def pack(self) -> Any:
        return self._state

    def state(self) -> State:
        return flatten(self._state), {}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self._state = rebuild(self._state, arrays)
