"""What a server releases of whole users, slot by slot: each slot once, whatever is new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fclub.core.packing import flatten, rebuild, with_room, with_row
from fclub.core.plus.type_filter import FilterRules, ReleasedTypes, first_types, release_point
from fclub.core.plus.type_release import add_contributions, release_length
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats
from fclub.errors import PrivacyError
from fclub.privacy.ledger import Ledger, Stream
from fclub.privacy.noise import NoiseSource
from fclub.privacy.slots import SlotPlan, draw_whole
from fclub.protocol.plus.type_messages import Release, write_noised
from fclub.protocol.seam import VISITS_PER_USER, Outlook, State

PERIOD = 1 << 20
"""No period has so many slots."""


class Before(NamedTuple):
    """What was known of users before the period in which they are noted: they have visited `since`."""

    users: Packed
    since: Counts

    @staticmethod
    def zeros(rows: int, dim: int) -> Before:
        return Before(Packed.zeros(rows, dim), np.zeros(rows, dtype=np.int64))


@dataclass
class OpenSlot:
    """A slot whose sum is being computed: rows of users below `following` are in it.

    It is taken at the centres and shares that were told before it was opened, in that `version`.
    """

    slot: int
    visits: int
    users: int
    version: int
    types: ReleasedTypes
    total: Counts
    following: int = 0


class SlotReleases:
    """Keeps to the slots of a period, and to values that were released before.

    What users add is worked out at the `centres` and `shares` that the global server told last; they
    are of that `version`. `covered` are the visits that were made before the last release, and `began`
    those before this period.
    """

    def __init__(
        self, plan: SlotPlan, rules: FilterRules, source: NoiseSource, ledger: Ledger, name: str
    ) -> None:
        self.plan, self.rules, self.source, self.ledger, self.name = plan, rules, source, ledger, name
        self.period = self.following = self.version = self.covered = self.began = 0
        self.types = first_types(rules)
        self.before = self._room = None if plan.days == 0.0 else Before.zeros(0, rules.dim)
        self.open: OpenSlot | None = None

    @property
    def stream(self) -> str:
        return f"{self.name}/{self.period}"

    def streams(self) -> dict[str, Stream]:
        """The stream of this period, once it has begun."""
        return {k: v for k, v in self.ledger.streams.items() if k == self.stream}

    def due(self, visits: int, users: int) -> int | None:
        """The slot that public numbers call for; None too when the budget has no room for a period.

        None also while another one is computed.
        """
        if self.open is not None:
            return None
        slot = self.plan.due(self.following, visits - self.began, users)
        if slot is None or self.ledger.is_open(self.stream):
            return slot
        return slot if self.ledger.admits(self.plan.mechanism, 1.0, self.period) else None

    def outlook(self, visits: int, users: int) -> Outlook:
        """At which mean number of visits the next slot is due."""
        used, plan = self.following, self.plan
        at = plan.visits[used] if used < plan.releases else None
        return Outlook(VISITS_PER_USER, (visits - self.began) / max(users, 1), at, used, plan.releases)

    def begin_period(self, number: int, users: Packed, visits: int) -> None:
        """Budget and contributions begin again; what was observed before is never released again."""
        if number <= self.period:
            raise PrivacyError(f"period {number} does not follow period {self.period}")
        self.period, self.following, self.began = number, 0, visits
        self.open = None
        if self.before is None:
            self._note_users(len(users.counts))

    def _note_users(self, users: int) -> Before:
        """Have room for what was known of users before this period; they are noted when they visit."""
        before, self._room = with_room(Before.zeros(users, self.rules.dim))
        self.before = before
        return before

    def add_user(self) -> None:
        if self.before is not None:
            self.before, self._room = with_row(self.before, self._room)

    def visit(self, row: int, users: Packed) -> None:
        """A user is about to be observed: note what was known before this period, once in it."""
        if self.before is not None and self.before.since[row] != self.period:
            self.before.since[row] = self.period
            for noted, known in zip(self.before.users, users, strict=True):
                noted[row] = known[row]

    def number(self, slot: int) -> int:
        """Slots of all periods in one order."""
        return self.period * PERIOD + slot + 1

    @property
    def used(self) -> int:
        """Up to which number slots may have left; the one that is being computed has not."""
        following = self.following if self.open is None else self.open.slot
        return self.period * PERIOD + following

    def abandon(self) -> None:
        """Whether another copy of this store has sent the slot that is being computed, others know."""
        if self.open is not None:
            self.following, self.open = self.open.slot, None

    def forgo(self, used: int, users: Packed, visits: int) -> None:
        """Everything up to this number is used, by whomever; another period may have begun."""
        period, following = divmod(used, PERIOD)
        if period > self.period:
            self.begin_period(period, users, visits)
        if period == self.period:
            self._give_up(following)

    def forgo_period(self) -> None:
        """Nobody can tell which slots of this period are used."""
        self._give_up(self.plan.releases)

    def _give_up(self, following: int) -> None:
        """Slots before this one may have left without an entry in this ledger: it charges them."""
        if self.open is not None and following > self.open.slot:
            self.abandon()
        lost = min(following, self.plan.releases) - self.following
        self.following = max(self.following, following)
        if lost > 0 and self._opened():
            self.ledger.release(self.stream, 0, lost)

    def _opened(self) -> bool:
        """Whether this period's stream is open, or can be opened now."""
        if self.ledger.is_open(self.stream):
            return True
        if not self.ledger.admits(self.plan.mechanism, 1.0, self.period):
            return False
        self.ledger.open(self.stream, self.plan.mechanism, 1.0, self.period)
        return True

    def begin_slot(self, slot: int, users: int, visits: int) -> None:
        """Use a slot, which can be done once; users who come later are not in it."""
        if not self.following <= slot < self.plan.releases:
            raise PrivacyError(f"slot {slot} of period {self.period} was used, or does not exist")
        self.following = slot + 1
        total = np.zeros(release_length(self.rules.types, self.rules.dim), dtype=np.int64)
        self.open = OpenSlot(slot, visits, users, self.version, self.types, total)

    @property
    def whole(self) -> bool:
        """Whether everybody is in the slot that was begun."""
        return self.open is not None and self.open.following == self.open.users

    def add(self, users: Packed, most: int) -> Callable[[], None]:
        """Copy the next users, at `most` so many; what is returned adds them, in any thread."""
        assert self.open is not None
        now, start = self.open, self.open.following
        now.following = min(start + most, now.users)
        own = self._of_period(users, start, now.following)
        point, bound = release_point(now.types, self.rules), self.plan.most(now.slot)

        def work() -> None:
            add_contributions(point, own, bound, self.plan.steps, now.total)

        return work

    def release(self, slot: int, users: Packed, visits: int) -> Release:
        """Compute a slot at once."""
        self.begin_slot(slot, len(users.counts), visits)
        self.add(users, len(users.counts))()
        return self.finish()

    def finish(self) -> Release:
        """Noise the sum over everybody; it is entered in the ledger first."""
        assert self.open is not None
        now, self.open = self.open, None
        if not self.ledger.is_open(self.stream):
            self.ledger.open(self.stream, self.plan.mechanism, 1.0, self.period)
        self.ledger.release(self.stream, max(now.visits - self.covered, 0))
        self.covered = now.visits
        total = now.total + draw_whole(self.source, len(now.total), self.plan.deviation)
        told = now.version, now.users, now.visits, self.rules.types
        return Release(self.period, now.slot, *told, write_noised(total))

    def _of_period(self, users: Packed, start: int, stop: int) -> Packed:
        """Statistics of this period alone: of users who have visited in it."""
        own = users.slice(start, stop).copy()
        if self.before is not None:
            before, here = self.before.users.slice(start, stop), self.before.since[start:stop]
            own.gram[:] -= before.gram
            own.moment[:] -= before.moment
            own.counts[:] -= before.counts
            for row in np.flatnonzero(here != self.period):
                own.clear(int(row))
        return own

    def forget(self, row: int) -> None:
        """The user's statistics are gone, those of earlier periods too; a slot is computed anew."""
        if self.before is not None:
            self.before.users.clear(row)
            self.before.since[row] = 0
        if self.open is not None:
            self.open = replace(self.open, total=np.zeros_like(self.open.total), following=0)

    def adopt(self, version: int, centres: Floats, shares: Floats) -> None:
        """The next contributions are taken here."""
        self.version = version
        self.types = self.types._replace(centres=centres, shares=shares)

    @property
    def by_user(self) -> tuple[str, ...]:
        return () if self.before is None else tuple(flatten(self.before, "before."))

    def state(self) -> State:
        arrays: dict[str, Any] = {"centres": self.types.centres, "shares": self.types.shares}
        if self.before is not None:
            arrays |= flatten(self.before, "before.")
        numbers = self.period, self.following, self.version, self.covered, self.began
        values: dict[str, Any] = {"slots": list(numbers), "open": None}
        if self.open is not None:
            now = self.open
            values["open"] = [now.slot, now.visits, now.users, now.version, now.following]
            told = {"open.centres": now.types.centres, "open.shares": now.types.shares}
            arrays |= told | {"open.total": now.total}
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.period, self.following, version, self.covered, self.began = map(int, values["slots"])
        self.adopt(version, arrays["centres"], arrays["shares"])
        self.before = self.open = None
        if "before.since" in arrays:
            kept = rebuild(Before.zeros(0, self.rules.dim), arrays, "before.")
            self.before, self._room = with_room(kept)
        if values["open"] is not None:
            slot, visits, users, version, following = map(int, values["open"])
            told = {"centres": arrays["open.centres"], "shares": arrays["open.shares"]}
            at = version, self.types._replace(**told), arrays["open.total"].copy()
            self.open = OpenSlot(slot, visits, users, *at, following)


def period_start(plan: SlotPlan, now: float) -> int:
    """The number of a slot up to which all are used when the period of this time begins."""
    return plan.period(now) * PERIOD


def period_end(plan: SlotPlan, used: int, now: float) -> int:
    """The number of the last slot in the period of this time, or in that of slots which are used."""
    return max(plan.period(now), used // PERIOD) * PERIOD + plan.releases
