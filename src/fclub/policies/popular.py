"""`popular`: what most people like, for everybody."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.popularity import Popularity, feedback, recommend, with_room
from fclub.core.types import Floats, Indices
from fclub.parameters import meaning
from fclub.policies.kernel import KernelPolicy

FIRST_ROOM = 64
STREAM = 20_220_801
"""A fixed seed: where an item is put in the table decides nothing but the time to find it."""


class Popular(KernelPolicy[Popularity]):
    """Like rates per item over all users, for catalogues.

    Features only say which item it is, so it is of use where the same items come again. People are
    offered different items anyway: on the real ratings that were tried, no exploration did best.

    >>> import fclub
    >>> fclub.simulate(fclub.Popular(strength=1.0), "synthetic", rounds=500)
    <Trace of popular in synthetic, seed 0: 500 rounds, regret ...>
    """

    catalogue = True
    kernels = (recommend, feedback)

    strength: Annotated[
        float, meaning("weight of the mean of all items in an item's rate", "observations", above=0)
    ] = 2.0
    exploration: Annotated[
        float, meaning("standard deviations that are added to an item's rate", least=0)
    ] = 0.0

    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Popularity:
        form = np.random.default_rng(STREAM).uniform(1e4, 1e5, problem.dim)
        nothing = Popularity(
            features=np.zeros((0, problem.dim)),
            shown=np.zeros(0, dtype=np.int64),
            earned=np.zeros(0),
            table=np.zeros(0, dtype=np.int64),
            used=np.zeros(1, dtype=np.int64),
            totals=np.zeros(2),
            form=form,
            strength=self.strength,
            exploration=self.exploration,
        )
        return with_room(nothing, FIRST_ROOM)

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
