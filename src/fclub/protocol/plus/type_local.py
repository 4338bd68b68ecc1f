"""A local server with many users, who are served from types: how it learns them with all others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fclub.core.packing import flatten, rebuild
from fclub.core.plus.beliefs import (
    PopulationPrior,
    TypeRules,
    tell_beliefs,
)
from fclub.core.plus.type_sums import VISITS, Known, TypeSums, inform, know_users
from fclub.core.types import Indices, Vector
from fclub.privacy.ledger import Stream
from fclub.privacy.sensitivity import Domain
from fclub.protocol.link import Uplink
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.people import Crowd, People
from fclub.protocol.plus.type_serving import TypeServing
from fclub.protocol.seam import (
    NOTHING,
    OBSERVATIONS,
    Beginning,
    Moment,
    Outlook,
    State,
    nothing,
)

EXCHANGES = 3
"""How often servers send their sums in a phase; each time the types of all servers move."""

PART = 2048
"""Users who are added up at a time beside serving: a few hundredths of a second of another thread."""

FIRST_PHASE = 0.1
"""Visits, as a mean over the users of a server, before which there is little to learn of types."""


@dataclass
class Pass:
    """Users are added up in parts: rows below `following` are in the sums, or about to be.

    `found` are types of users from row `first` on that were not noted yet.
    """

    sums: TypeSums
    following: int = 0
    first: int = 0
    found: Indices | None = None

    def note(self, people: People) -> None:
        """Label those whose types were found."""
        if self.found is not None:
            people.label(self.first, self.found)
            self.found = None


class TypeLocal(TypeServing):
    """Learns types in phases.

    In a phase the server works out what each user's data say, and then, EXCHANGES times, adds users up
    by type, sends the sums, and moves its types by the sums of all servers. The population, the spread
    within types and the variance of rewards move at the end of a phase. A server that does not `share`
    does the same with its own sums. In a simulation it takes part in the first phase, so that the
    global server knows it, and in others from FIRST_PHASE on. With a clock of its own it begins phases
    itself, as a live server does.

    With `in_parts` whoever runs it has users added up beside serving, so many at a time: each is added
    with the data that it has when its part is taken. Otherwise all are added at once, which gives the
    same bits if nothing happens between the parts.

    Where observations fade, sums are made of all nevertheless.
    """

    in_parts = False

    def __init__(
        self,
        crowd: Crowd,
        rules: TypeRules,
        exploration: float,
        share: bool,
        domain: Domain,
        link: Uplink,
        clock: GeometricClock | None = None,
        kept: float = 1.0,
    ) -> None:
        super().__init__(crowd, rules, exploration, domain, kept)
        self.share, self.link, self.clock = share, link, clock
        self.prior = PopulationPrior.of(rules)
        self.sums = TypeSums.zeros(rules.types, rules.dim)
        self.others = TypeSums.zeros(rules.types, rules.dim)
        self.phase, self.step, self.sharing = 0, 0, 0
        self.unanswered = self.paused = False
        self.owing = self.asking = self.asking_next = False
        self._known: tuple[Known, TypeSums] | None = None
        self._pass: Pass | None = None

    @property
    def observations(self) -> int:
        """In a simulation others write into these arrays; a live server has counted."""
        return int(self.counts.sum()) if self.clock is None else self.people.seen

    @property
    def waiting(self) -> int:
        return max(0, self.observations - int(self.sums.scalars[VISITS]) * self.share)

    @property
    def has_begun(self) -> bool:
        """Are there enough visits to learn types from?"""
        return self.observations >= max(1.0, FIRST_PHASE * len(self.labels))

    @property
    @abstractmethod
    def group_of(self) -> Indices:
        """Types are the same on all servers that share them."""

    @property
    @abstractmethod
    def ids(self) -> list[int]:
        """Of types that others know of."""

    def withhold(self, row: int, x: Vector, y: float) -> None:
        """Exact sums promise nothing."""
        self.observe(row, x, y)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """What users' data say is worked out anew in the next phase; what is being added up stays."""
        self.people.replace(row, x, old - self.centre, new - self.centre)
        self._known = None

    @property
    def final_once_sent(self) -> bool:
        return False

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        """The next phase tells what was learned meanwhile; who owes all of its sums sends them now."""
        self.paused = False
        if self.owing:
            self.step, self.asking, self.asking_next = 0, True, False
            self._begin_pass()

    @property
    def used(self) -> int:
        return 0

    def begin(self, beginning: Beginning) -> None:
        """Send all sums anew once both sides agree; no answer to an earlier question will come."""
        self.unanswered = False
        self.owing = self.clock is not None and self.share and self.observations > 0
        if not self.paused:
            self.go_on()

    def forget(self, row: int) -> int:
        """The next sums do without this user; types have moved by earlier ones, and stay there."""
        released = int(self.counts[row]) if self.ids else 0
        self.people.forget(row, int(np.argmax(self.beliefs.users)))
        self._known = None
        if self._pass is not None:
            self._pass = self._new_pass()
        return released

    def due(self, moment: Moment | None = None) -> Callable[[], None] | None:
        """Nothing while users are added up."""
        if moment is not None or self.clock is None or self._pass is not None:
            return None
        if self.observations < self.clock.next_start or not self.has_begun:
            return None
        return self._begin_own_phase

    def _begin_own_phase(self) -> None:
        """If no answer will come, first go on with what others said last."""
        assert self.clock is not None
        self.clock.advance(self.observations)
        self._begin_phase(self.clock.phase)

    def _begin_phase(self, phase: int) -> None:
        """Ask the others in every step, or go through all steps alone; after no answer, first alone.

        What others have not answered yet is not awaited any more.
        """
        asks, alone = self.share and not self.paused, self.unanswered and self.clock is not None
        self.phase, self.step, self.unanswered = phase, 0, self.unanswered and not self.share
        self.asking, self.asking_next = asks and not alone, asks and alone
        self._begin_pass()

    @abstractmethod
    def _new_pass(self) -> Pass:
        """With sums of nobody yet."""

    def _begin_pass(self) -> None:
        self._pass = self._new_pass()
        if not self.in_parts:
            self._add_all(self._pass)

    @property
    def busy(self) -> bool:
        return self._pass is not None

    def part(self) -> Callable[[], None]:
        """Copy the next users, who are added up elsewhere; after the last, go on with the sums."""
        assert self._pass is not None
        added, users = self._pass, len(self.labels)
        added.note(self.people)
        start, stop = added.following, min(added.following + PART, users)
        if start == stop:
            self._finish(added.sums)
            return nothing
        crowd, model, add_up = self.people.crowd.copy(start, stop), self.model, self._adder(added.sums)
        labels, added.following = self.labels[start:stop].astype(np.int64), stop

        def add() -> None:
            people = np.flatnonzero(crowd.users.counts > 0)
            add_up(know_users(model, crowd.users, crowd.squares, people, added.sums), labels)
            added.first, added.found = start, labels

        return add

    @abstractmethod
    def _adder(self, sums: TypeSums) -> Callable[[Known, Indices], None]:
        """Adds users to the types that are believed in now, and notes their labels."""

    def _add_all(self, added: Pass) -> None:
        """What users' data say does not change within a phase unless there are new data."""
        if self._known is None or self._known[1].scalars[VISITS] != self.observations:
            people = np.flatnonzero(self.counts > 0)
            known = know_users(self.model, self.users, self.people.crowd.squares, people, added.sums)
            self._known = known, TypeSums(*(array.copy() for array in added.sums))
        known, population = self._known
        for new, old in zip(added.sums[3:], population[3:], strict=True):
            new[...] = old
        labels = self.labels.astype(np.int64)
        self._adder(added.sums)(known, labels)
        self.people.label(0, labels)
        self._finish(added.sums)

    def _finish(self, sums: TypeSums) -> None:
        """Everybody is added up: ask, or move alone and add up again.

        Who meant to ask goes through the steps alone if it may not tell anything any more.
        """
        self._pass, self.sums = None, sums
        inform(self.model, sums)
        tell_beliefs(self.beliefs, sums)
        if self._ask():
            return
        self.asking = False
        self._step_on()
        if self.step == EXCHANGES and self.asking_next and not self.paused:
            self.step, self.asking, self.asking_next = 0, True, False
            self._begin_pass()

    @abstractmethod
    def _ask(self) -> bool:
        """Whether others were asked."""

    def _step_on(self) -> None:
        """Move by the sums of this step; the next begins unless it was the last."""
        self._move()
        self.step += 1
        if self.step < EXCHANGES:
            self._begin_pass()

    @abstractmethod
    def _move(self) -> None:
        """Move types by the sums of all servers; in the last step the population, too."""

    def streams(self) -> dict[str, Stream]:
        return {}

    @property
    def outlook(self) -> Outlook:
        if not self.share:
            return Outlook(NOTHING)
        first = FIRST_PHASE * len(self.labels)
        at = max(first, self.clock.next_start) if self.clock else None
        return Outlook(OBSERVATIONS, self.observations, at)

    def state(self) -> State:
        """A part that was taken must have been added before."""
        arrays = flatten(self.beliefs, "beliefs.")
        arrays |= flatten(self.sums, "sums.") | flatten(self.others, "others.")
        following = None
        if self._pass is not None:
            self._pass.note(self.people)
            following = self._pass.following
            arrays |= flatten(self._pass.sums, "pass.")
        return arrays | self.people.arrays(), {
            "phase": self.phase,
            "step": self.step,
            "sharing": self.sharing,
            "unanswered": self.unanswered,
            "asking": [self.owing, self.asking, self.asking_next],
            "following": following,
            "clock": None if self.clock is None else self.clock.state(),
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.people.restore(arrays)
        self._known, self._pass = None, None
        self._believe(rebuild(self.beliefs, arrays, "beliefs."))
        self.sums, self.others = (
            rebuild(self.sums, arrays, "sums."),
            rebuild(self.others, arrays, "others."),
        )
        self.phase, self.step = int(values["phase"]), int(values["step"])
        self.sharing, self.unanswered = int(values["sharing"]), bool(values["unanswered"])
        self.owing, self.asking, self.asking_next = values["asking"]
        if values["following"] is not None:
            self._pass = Pass(rebuild(self.sums, arrays, "pass."), int(values["following"]))
        if self.clock is not None:
            self.clock.restore(values["clock"])
