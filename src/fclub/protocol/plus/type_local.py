"""A local server with many users: served from types, which it learns together with all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fclub.core.packing import flatten, rebuild, with_row
from fclub.core.plus.beliefs import (
    Beliefs,
    TypeRules,
    first_beliefs,
    move_population,
    move_types,
    tell_beliefs,
    write_model,
)
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import keep, know_user, means_by_types, recommend_by_types
from fclub.core.plus.type_sums import VISITS, Known, TypeSums, know_users, sum_types
from fclub.core.statistics import Packed, Statistics
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.errors import InvalidMessage
from fclub.privacy.ledger import Stream
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.link import Uplink
from fclub.protocol.messages import Message, PhaseStart
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.type_messages import (
    TypeDigest,
    TypeNews,
    read_sums,
    read_values,
    to_bytes,
    write_sums,
)
from fclub.protocol.seam import Beginning, Bound, LocalOverview, Slotted, State

EXCHANGES = 3
"""How often servers send their sums in a phase; each time the types of all servers move."""

FIRST_PHASE = 0.1
"""Visits, as a mean over the users of a server, before which there is little to learn of types."""


class Crowd(NamedTuple):
    """What is kept of each user: statistics of centred rewards, and the sum of their squares."""

    users: Packed
    squares: Floats


class TypeLocal:
    """Users may be a slice of a federation's arrays.

    In a phase the server works out what each user's data say, and then, EXCHANGES times, adds users up
    by type, sends the sums, and moves its types by the sums of all servers. The population, the spread
    within types and the variance of rewards move at the end of a phase. A server that does not `share`
    does the same with its own sums. In a simulation it takes part in every second phase, for its costs
    grow with all users: in the first, so that the global server knows it, and then from FIRST_PHASE on.
    With a clock of its own it begins phases itself, as a live server does.
    """

    def __init__(
        self,
        crowd: Crowd,
        rules: TypeRules,
        exploration: float,
        share: bool,
        domain: Domain,
        link: Uplink,
        clock: GeometricClock | None = None,
    ) -> None:
        self.crowd = self.room = crowd
        self.rules, self.exploration, self.share = rules, exploration, share
        self.domain, self.link, self.clock = domain, link, clock
        self.centre = CENTRE if domain.constant is not None else 0.0
        self.model = TypeModel.zeros(1, rules.types, rules.dim)
        self._believe(first_beliefs(rules))
        self.sums = TypeSums.zeros(rules.types, rules.dim)
        self.others = TypeSums.zeros(rules.types, rules.dim)
        self.labels: Indices = np.zeros(len(crowd.squares), dtype=np.int64)
        self.phase, self.step, self.sharing = 0, 0, 0
        self.unanswered = self.paused = False
        self._known: tuple[Known, TypeSums] | None = None

    def _believe(self, beliefs: Beliefs) -> None:
        self.beliefs = beliefs
        write_model(beliefs, self.model)

    @property
    def users(self) -> Packed:
        return self.crowd.users

    @property
    def counts(self) -> Counts:
        return self.users.counts

    @property
    def observations(self) -> int:
        return int(self.counts.sum())

    @property
    def waiting(self) -> int:
        return max(0, self.observations - int(self.sums.scalars[VISITS]) * self.share)

    @property
    def has_begun(self) -> bool:
        """Are there enough visits to learn types from?"""
        return self.observations >= max(1.0, FIRST_PHASE * len(self.labels))

    @property
    def served_by(self) -> Indices:
        """Every user's most probable type at the last phase."""
        return self.labels

    @property
    def group_of(self) -> Indices:
        """Types are the same everywhere."""
        return self.labels if self.ids else -1 - self.labels

    @property
    def ids(self) -> list[int]:
        return [*range(self.rules.types)] if self.share and self.sums.scalars[VISITS] else []

    @property
    def theta(self) -> Floats:
        """Estimates of rewards as they are; what was learned from are centred ones."""
        theta = np.empty_like(self.users.moment)
        means_by_types(self.model, self.users, theta)
        if self.domain.constant is not None:
            theta[:, -1] += CENTRE / self.domain.constant
        return theta

    def add_user(self) -> int:
        """A user of whom nothing is known is served by what is known of all."""
        self.crowd, self.room = with_row(self.crowd, self.room)
        self.labels = np.append(self.labels, np.argmax(self.beliefs.users))
        return len(self.labels) - 1

    def recommend(self, row: int, items: Matrix) -> int:
        return recommend_by_types(self.model, 0, self.users, row, items, self.exploration)

    def observe(self, row: int, x: Vector, y: float) -> None:
        keep(self.users, self.crowd.squares, row, x, y - self.centre)

    def withhold(self, row: int, x: Vector, y: float) -> None:
        """Exact sums promise nothing."""
        self.observe(row, x, y)

    @property
    def slotted(self) -> Slotted | None:
        return None

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        """The next phase tells what was learned meanwhile."""
        self.paused = False

    @property
    def used(self) -> int:
        return 0

    def begin(self, beginning: Beginning) -> None:
        """Send all sums anew; no answer to an earlier question will come."""
        self.unanswered = False
        if self.clock is not None and self.share and self.observations:
            self.step = 0
            self._report()

    def bound(self, row: int) -> Bound:
        mean, covariance = np.empty(self.rules.dim), np.empty((self.rules.dim, self.rules.dim))
        know_user(self.model, 0, self.users, row, mean, covariance)
        return Bound(mean, covariance, self.exploration, self.centre)

    def stored(self, row: int) -> Statistics:
        return Statistics.of(self.users, row).copy()

    def forget(self, row: int) -> int:
        """The next sums do without this user; types have moved by earlier ones, and stay there."""
        released = int(self.counts[row]) if self.ids else 0
        self.users.clear(row)
        self.crowd.squares[row] = 0.0
        self.labels[row], self._known = np.argmax(self.beliefs.users), None
        return released

    def due(self) -> Callable[[], None] | None:
        if self.clock is None or self.observations < self.clock.next_start or not self.has_begun:
            return None
        return self._begin_own_phase

    def _begin_own_phase(self) -> None:
        assert self.clock is not None
        self.clock.advance(self.observations)
        if self.unanswered:  # no answer will come: go on with what others said last
            self._learn_alone()
        self._begin_phase(self.clock.phase)

    def receive(self, message: Message) -> None:
        match message:
            case PhaseStart() if self.clock is None:
                if message.phase % 2 == 0 and (self.has_begun or not self.phase):
                    self._begin_phase(message.phase)
            case TypeNews():
                self._adopt(message)
            case _:
                raise InvalidMessage(f"a server of types does not take a {type(message).__name__}")

    def _begin_phase(self, phase: int) -> None:
        self.phase, self.step = phase, 0
        if self.share and not self.paused:
            self._report()
        else:
            self._learn_alone()

    def _learn_alone(self) -> None:
        for step in range(EXCHANGES):
            self.step = step
            self._add_up()
            self._move()

    def _report(self) -> None:
        self._add_up()
        self.unanswered = True
        sums = to_bytes(write_sums(self.sums))
        self.link.to_global(TypeDigest(self.phase, self.step, self.rules.types, sums))

    def _add_up(self) -> None:
        """What users' data say does not change within a phase unless there are new data."""
        if self._known is None or self._known[1].scalars[VISITS] != self.observations:
            people = np.flatnonzero(self.counts > 0)
            population = TypeSums.zeros(self.rules.types, self.rules.dim)
            known = know_users(self.model, self.users, self.crowd.squares, people, population)
            self._known = known, population
        known, population = self._known
        self.sums = TypeSums(*(array.copy() for array in population))
        beliefs = self.beliefs
        told = beliefs.centres, beliefs.within, beliefs.own
        sum_types(self.model, known, *told, self.labels, self.sums)
        tell_beliefs(beliefs, self.sums)

    def _move(self) -> None:
        total = self.sums.plus(self.others)
        beliefs = move_types(self.beliefs, total, self.rules)
        if self.step == EXCHANGES - 1:
            beliefs = move_population(beliefs, total, self.rules)
            self._known = None
            self.labels[self.counts == 0] = np.argmax(beliefs.users)
        self._believe(beliefs)

    def _adopt(self, message: TypeNews) -> None:
        """Move types by the sums of all servers, and send the next ones.

        A late answer is of no use: the server has gone on without it.
        """
        asked = message.phase, message.step
        if asked < (self.phase, self.step):
            return
        if not self.unanswered or asked != (self.phase, self.step) or message.servers < 0:
            raise InvalidMessage(f"sums of others for step {message.step}, which was not asked for")
        if message.types != self.rules.types:
            raise InvalidMessage(f"sums over {message.types} types")
        shape = self.rules.types, self.rules.dim
        self.others = read_sums(read_values(message.sums, *shape), *shape)
        self.sharing, self.unanswered = message.servers, False
        self._move()
        self.step += 1
        if self.step < EXCHANGES:
            self._report()

    def streams(self) -> dict[str, Stream]:
        return {}

    def overview(self) -> list[LocalOverview]:
        return [self._overview_of(k) for k in range(self.rules.types)]

    def _overview_of(self, k: int) -> LocalOverview:
        users, told = self.labels == k, bool(self.ids)
        own, sent = int(self.counts[users].sum()), round(float(self.sums.visits[k])) * told
        return LocalOverview(
            cluster=k if told else None,
            group=k if told else None,
            users=int(users.sum()),
            own=own,
            others=round(float(self.others.visits[k])),
            waiting=max(own - sent, 0),
            shared_by=1 + self.sharing,
        )

    def state(self) -> State:
        arrays = flatten(self.crowd, "crowd.") | flatten(self.beliefs, "beliefs.")
        arrays |= flatten(self.sums, "sums.") | flatten(self.others, "others.")
        return arrays | {"labels": self.labels}, {
            "phase": self.phase,
            "step": self.step,
            "sharing": self.sharing,
            "unanswered": self.unanswered,
            "clock": None if self.clock is None else self.clock.state(),
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        if len(arrays["labels"]) == len(self.labels):
            for name, array in flatten(self.crowd, "crowd.").items():
                array[...] = arrays[name]
        else:
            self.crowd = self.room = rebuild(self.crowd, arrays, "crowd.")
        self._believe(rebuild(self.beliefs, arrays, "beliefs."))
        self.sums, self.others = (
            rebuild(self.sums, arrays, "sums."),
            rebuild(self.others, arrays, "others."),
        )
        self.labels, self._known = arrays["labels"].copy(), None
        self.phase, self.step = int(values["phase"]), int(values["step"])
        self.sharing, self.unanswered = int(values["sharing"]), bool(values["unanswered"])
        if self.clock is not None:
            self.clock.restore(values["clock"])
