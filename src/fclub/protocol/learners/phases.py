"""What a server learns of types at home, from its own users and what was released of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fclub.core.plus.split_sums import SplitSums
from fclub.protocol.interfaces.learner import Job, State
from fclub.protocol.learners.splitter import Splitter
from fclub.protocol.learners.types import ADDING, STEPS, RoundNews, Types
from fclub.protocol.phase import GeometricClock

OWN_USERS, OTHERS = range(2)
"""Numbers under which sums are kept."""


class PhasesAtHome:
    """Decides here what the global server decides where servers share their sums.

    With a clock of its own it begins phases itself, as a live server does. It `prepares` before each,
    and learns nothing while it is not `ready`.
    """

    kind = ADDING

    def __init__(
        self,
        learner: Types,
        clock: GeometricClock | None,
        ready: Callable[[], bool] = lambda: True,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.learner, self.clock = learner, clock
        self.ready, self.prepare = ready, prepare
        self.splitter = Splitter(learner.rules.types, learner.rules.dim)
        self.phase = 0

    def due(self) -> Callable[[], Job | None] | None:
        clock, learner = self.clock, self.learner
        if clock is None or learner.observations < clock.next_start:
            return None
        return self._begin if learner.has_begun and self.ready() else None

    def _begin(self) -> Job:
        assert self.clock is not None
        self.clock.advance(self.learner.observations)
        self.prepare()
        return self._phase()

    def call(self) -> Job | None:
        if not self.ready() or (self.phase and not self.learner.takes_part()):
            return None
        self.prepare()
        return self._phase()

    def _phase(self) -> Job:
        self.phase += 1
        return self._step(0)

    def _step(self, step: int) -> Job:
        return Job(self.kind, len(self.learner.counts), ask={"step": step})

    def finish(self, job: Job) -> Job | None:
        learner, types, step = self.learner, self.splitter, job.ask["step"]
        types.learn(OWN_USERS, learner.grouping, learner.splits)
        outside = learner.guests.sums(learner)
        if outside is None:
            types.forget(OTHERS)
        else:
            types.learn(OTHERS, learner.grouping, outside)
        types.decide()
        others = types.known.get(OTHERS, SplitSums.zeros(types.types, types.dim))
        sums, last = (types.known[OWN_USERS], others), step + 1 == STEPS
        learner.absorb(RoundNews(types.grouping, *sums, types.fresh, learner.sharing, last))
        return None if last else self._step(step + 1)

    def state(self) -> State:
        arrays, types = self.splitter.state()
        clock = None if self.clock is None else self.clock.state()
        return arrays, {"types": types, "clock": clock, "phase": self.phase}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.splitter.restore(arrays, values["types"])
        self.phase = values["phase"]
        if self.clock is not None:
            self.clock.restore(values["clock"])
