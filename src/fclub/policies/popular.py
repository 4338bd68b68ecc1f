"""`popular`: what most people like, for everybody."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Parameter, Problem, require
from fclub.core.popularity import Popularity, feedback, recommend, with_room
from fclub.core.types import Floats, Indices
from fclub.policies.kernel import KernelPolicy

FIRST_ROOM = 64
STREAM = 20_220_801
"""A fixed seed: where an item is put in the table decides nothing but the time to find it."""


class Popular(KernelPolicy):
    """Like rates per item over all users of all servers; features only say which item it is.

    Of use where the same items come again. `strength` is the weight of the mean of all items, in
    observations, and `exploration` the number of standard deviations on top of an item's rate: people
    are offered different items anyway, and none did best on the real ratings that were tried.
    """

    defaults: ClassVar[dict[str, Parameter]] = {"strength": 2.0, "exploration": 0.0}
    kernels = (recommend, feedback)
    _state: Popularity

    def __init__(self, name: str, **parameters: Parameter) -> None:
        super().__init__(name, **parameters)
        p: Any = self._parameters
        require(p["strength"] > 0, "strength must be above 0", p["strength"])
        require(p["exploration"] >= 0, "exploration must be at least 0", p["exploration"])

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool) -> None:
        p: Any = self._parameters
        form = np.random.default_rng(STREAM).uniform(1e4, 1e5, problem.dim)
        nothing = Popularity(
            features=np.zeros((0, problem.dim)),
            shown=np.zeros(0, dtype=np.int64),
            earned=np.zeros(0),
            table=np.zeros(0, dtype=np.int64),
            used=np.zeros(1, dtype=np.int64),
            totals=np.zeros(2),
            form=form,
            strength=float(p["strength"]),
            exploration=float(p["exploration"]),
        )
        self._state = with_room(nothing, FIRST_ROOM)

    @property
    def next_stop(self) -> int:
        """A round adds one item at most."""
        return self.observations + self._state.room

    def after_round(self) -> None:
        """Keep at least as much room as there are items, so that stops are rare."""
        if self._state.room <= self._state.used[0]:
            self._state = with_room(self._state, 4 * len(self._state.shown))

    @property
    def labels_(self) -> Indices:
        """Everybody is served alike."""
        return np.zeros(self.problem.users, dtype=np.int64)

    @property
    def theta_(self) -> Floats:
        """No taste is learned."""
        return np.zeros((self.problem.users, self.problem.dim))
