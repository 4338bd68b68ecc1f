"""What a server releases of whole users, slot by slot: each slot once, whatever is new."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.packing import flatten, rebuild
from fclub.core.plus.type_filter import FilterRules, first_types, release_point
from fclub.core.plus.type_release import add_contributions, release_length
from fclub.core.statistics import Packed
from fclub.core.types import Floats
from fclub.errors import PrivacyError
from fclub.privacy.ledger import Ledger, Stream
from fclub.privacy.noise import NoiseSource
from fclub.privacy.slots import SlotPlan, draw_whole
from fclub.protocol.plus.type_messages import Release, write_noised
from fclub.protocol.seam import State

PERIOD = 1 << 20
"""No period has so many slots."""


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
        self.before: Packed | None = None

    @property
    def stream(self) -> str:
        return f"{self.name}/{self.period}"

    def streams(self) -> dict[str, Stream]:
        """The stream of this period, once it has begun."""
        return {k: v for k, v in self.ledger.streams.items() if k == self.stream}

    def due(self, visits: int, users: int) -> int | None:
        """The slot that public numbers call for; None too when the budget has no room for a period."""
        slot = self.plan.due(self.following, visits - self.began, users)
        if slot is None or self.ledger.is_open(self.stream):
            return slot
        return slot if self.ledger.admits(self.plan.mechanism, 1.0, self.period) else None

    def begin_period(self, number: int, users: Packed, visits: int) -> None:
        """Budget and contributions begin again; what was observed before is never released again."""
        if number <= self.period:
            raise PrivacyError(f"period {number} does not follow period {self.period}")
        self.period, self.following, self.began = number, 0, visits
        self.before = users.copy()

    def number(self, slot: int) -> int:
        """Slots of all periods in one order."""
        return self.period * PERIOD + slot + 1

    @property
    def used(self) -> int:
        return self.period * PERIOD + self.following

    def forgo(self, used: int, users: Packed, visits: int) -> None:
        """Everything up to this number is used, by whomever; another period may have begun."""
        period, following = divmod(used, PERIOD)
        if period > self.period:
            self.begin_period(period, users, visits)
        if period == self.period:
            self.following = max(self.following, following)

    def forgo_period(self) -> None:
        """Nobody can tell which slots of this period are used."""
        self.following = self.plan.releases

    def release(self, slot: int, users: Packed, visits: int) -> Release:
        """Compute a slot, which can be done once; it is entered in the ledger first."""
        if not self.following <= slot < self.plan.releases:
            raise PrivacyError(f"slot {slot} of period {self.period} was used, or does not exist")
        if not self.ledger.is_open(self.stream):
            self.ledger.open(self.stream, self.plan.mechanism, 1.0, self.period)
        self.ledger.release(self.stream, max(visits - self.covered, 0))
        self.following, self.covered = slot + 1, visits
        total = np.zeros(release_length(self.rules.types, self.rules.dim), dtype=np.int64)
        bound = self.plan.most(slot), self.plan.steps
        add_contributions(release_point(self.types, self.rules), self._of_period(users), *bound, total)
        total += draw_whole(self.source, len(total), self.plan.deviation)
        told = self.version, len(users.counts), visits, self.rules.types
        return Release(self.period, slot, *told, write_noised(total))

    def _of_period(self, users: Packed) -> Packed:
        """Statistics of this period alone; users who came later have no statistics before it."""
        if self.before is None:
            return users
        own, known = users.copy(), len(self.before.counts)
        own.gram[:known] -= self.before.gram
        own.moment[:known] -= self.before.moment
        own.counts[:known] -= self.before.counts
        return own

    def forget(self, row: int) -> None:
        """The user's statistics are gone, those of earlier periods too."""
        if self.before is not None and row < len(self.before.counts):
            self.before.clear(row)

    def adopt(self, version: int, centres: Floats, shares: Floats) -> None:
        """The next contributions are taken here."""
        self.version = version
        self.types = self.types._replace(centres=centres, shares=shares)

    def state(self) -> State:
        arrays = {"centres": self.types.centres, "shares": self.types.shares}
        if self.before is not None:
            arrays |= flatten(self.before, "before.")
        numbers = self.period, self.following, self.version, self.covered, self.began
        return arrays, {"slots": list(numbers), "renewed": self.before is not None}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.period, self.following, version, self.covered, self.began = map(int, values["slots"])
        self.adopt(version, arrays["centres"], arrays["shares"])
        self.before = None
        if values["renewed"]:
            self.before = rebuild(Packed.zeros(0, self.rules.dim), arrays, "before.")


def period_start(plan: SlotPlan, now: float) -> int:
    """The number of a slot up to which all are used when the period of this time begins."""
    return plan.period(now) * PERIOD
