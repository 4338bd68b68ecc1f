"""A live server that releases whole users once they are many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fclub.core.statistics import Statistics
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.privacy.ledger import Stream
from fclub.privacy.slots import SlotPlan
from fclub.protocol.messages import Message
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.slots import period_end, period_start
from fclub.protocol.plus.split_local import SplitLocal
from fclub.protocol.plus.type_messages import Released
from fclub.protocol.plus.user_local import UserLocal
from fclub.protocol.seam import (
    USERS,
    Beginning,
    Bound,
    LocalOverview,
    Moment,
    Outlook,
    Slotted,
    State,
)


class GrowingUsers:
    """A server that keeps to itself, and releases whole users once it has more than `few`.

    It keeps everything that it knows of its users, and never goes back. While few it has nothing to
    release. `arrived` are the visits before it grew; they count for slots too. So do the slots that it
    has `forgone` till then, since an older or a younger copy of it may have used them.
    """

    def __init__(
        self,
        alone: SplitLocal,
        few: int,
        with_types: Callable[[Crowd], UserLocal],
        plan: SlotPlan,
    ) -> None:
        self.few, self._with_types, self.plan = few, with_types, plan
        self.server: SplitLocal | UserLocal = alone
        self._alone: SplitLocal | None = alone
        self.grown: UserLocal | None = None
        self.arrived, self.forgone = 0, Beginning()

    def add_user(self) -> int:
        row = self.server.add_user()
        if self._alone is not None and row >= self.few:
            self._grow(self._alone)
        return row

    def _grow(self, alone: SplitLocal) -> None:
        self.server = self._make(alone.people.crowd)
        self.server.paused, self.server.in_parts = alone.paused, alone.in_parts
        self._alone = None

    def recommend(self, row: int, items: Matrix) -> int:
        return self.server.recommend(row, items)

    def observe(self, row: int, x: Vector, y: float) -> None:
        self.server.observe(row, x, y)

    def withhold(self, row: int, x: Vector, y: float) -> None:
        self.server.withhold(row, x, y)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        self.server.replace(row, x, old, new)

    @property
    def final_once_sent(self) -> bool:
        return self.server.final_once_sent

    def pause(self) -> None:
        self.server.pause()

    def go_on(self) -> None:
        self.server.go_on()

    def bound(self, row: int) -> Bound:
        return self.server.bound(row)

    def stored(self, row: int) -> Statistics:
        return self.server.stored(row)

    def forget(self, row: int) -> int:
        return self.server.forget(row)

    def due(self, moment: Moment | None = None) -> Callable[[], None] | None:
        return self.server.due(moment)

    @property
    def in_parts(self) -> bool:
        return self.server.in_parts

    @in_parts.setter
    def in_parts(self, wanted: bool) -> None:
        self.server.in_parts = wanted

    @property
    def busy(self) -> bool:
        return self.server.busy

    def part(self) -> Callable[[], None]:
        return self.server.part()

    @property
    def by_user(self) -> tuple[str, ...]:
        return self.server.by_user

    @property
    def counts(self) -> Counts:
        return self.server.counts

    @property
    def waiting(self) -> int:
        return self.server.waiting

    @property
    def unanswered(self) -> bool:
        return self.server.unanswered

    @property
    def served_by(self) -> Indices:
        return self.server.served_by

    @property
    def theta(self) -> Floats:
        return self.server.theta

    @property
    def group_of(self) -> Indices:
        return self.server.group_of

    @property
    def ids(self) -> list[int]:
        return self.server.ids

    def streams(self) -> dict[str, Stream]:
        return self.server.streams()

    def overview(self) -> list[LocalOverview]:
        return self.server.overview()

    def _make(self, crowd: Crowd) -> UserLocal:
        self.grown = self._with_types(crowd)
        self.grown.arrivals = self.arrived
        self.grown.begin(self.forgone)
        return self.grown

    def receive(self, message: Message) -> None:
        """A lost store of this name may have been large: what it is told is nothing to a small one."""
        if self.grown is not None or not isinstance(message, Released):
            self.server.receive(message)

    @property
    def slotted(self) -> Slotted | None:
        return self

    def arrive(self) -> None:
        if self.grown is None:
            self.arrived += 1
        else:
            self.grown.arrive()

    @property
    def outlook(self) -> Outlook:
        """Few users keep to themselves."""
        if self.grown is None:
            return Outlook(USERS, len(self.counts), self.few + 1, releases=self.plan.releases)
        return self.grown.outlook

    def due_slot(self) -> int | None:
        return None if self.grown is None else self.grown.due_slot()

    def release(self, slot: int) -> None:
        assert self.grown is not None
        self.grown.release(slot)

    def period_start(self, now: float) -> int:
        return period_start(self.plan, now)

    def period_end(self, now: float) -> int:
        return period_end(self.plan, self.used, now)

    def slot_number(self, slot: int) -> int:
        assert self.grown is not None
        return self.grown.slot_number(slot)

    @property
    def unfinished(self) -> int:
        return 0 if self.grown is None else self.grown.unfinished

    @property
    def used(self) -> int:
        return self.forgone.used if self.grown is None else self.grown.used

    def forgo(self, used: int) -> None:
        self.forgone = self.forgone._replace(used=max(self.forgone.used, used))
        if self.grown is not None:
            self.grown.forgo(used)

    def begin(self, beginning: Beginning) -> None:
        self.server.begin(beginning)
        lost = self.forgone.global_lost or (beginning.global_lost and not beginning.sure)
        self.forgone = Beginning(global_lost=lost, used=max(self.forgone.used, beginning.used))

    def state(self) -> State:
        arrays, values = self.server.state()
        values |= {"grown": self._alone is None}
        return arrays, values | {"arrived": self.arrived, "forgone": list(self.forgone)}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        if values["grown"] and self._alone is not None:
            self._grow(self._alone)
        self.server.restore(arrays, values)
        self.arrived, self.forgone = int(values["arrived"]), Beginning(*values["forgone"])
