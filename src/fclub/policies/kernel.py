"""Policies whose whole state is one named tuple of arrays, played by two kernels."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.packing import flatten, rebuild
from fclub.core.types import Indices, Matrix, Vector
from fclub.policies.base import Policy
from fclub.protocol.seam import Kernels, State

Arrays = TypeVar("Arrays")
"""The named tuple."""


class KernelPolicy(Policy, Generic[Arrays]):
    """Subclasses have `kernels`, (recommend, feedback), and `_begin`."""

    kernels: ClassVar[Kernels]

    @abstractmethod
    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Arrays:
        """The state before the first round."""

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> None:
        self._state = self._begin(problem, server_of, seed)

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
