"""What a live server learns of the items of its catalogue; no part of what it sends knows of it.

Every decision keeps which reward was expected of the user and the item's features, and every reward is
compared with that. The store holds both, so what is learned is a sum over what is stored: a restart
adds it up again, and whatever is deleted there, for a user who is forgotten or for its age, is taken
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import floor

from fclub.core.items import NOTHING, Residuals, in_units
from fclub.core.types import Vector
from fclub.protocol.interfaces.learner import Bound
from fclub.service.store.catalogue import Catalogue
from fclub.service.store.decisions import Decisions, Old
from fclub.service.store.past import Past
from fclub.service.store.store import Changes

Key = bytes | str
"""Of a decision, or of an observation made elsewhere."""


class Compared:
    """A reward that was compared and is on its way to the disk, in so many `changes`."""

    __slots__ = ("changes", "item", "residuals", "row")

    def __init__(self, row: int, item: str, residuals: Residuals, changes: int) -> None:
        self.row, self.item, self.residuals, self.changes = row, item, residuals, changes


def residuals_of(reward: float | None, expected: int | None) -> Residuals:
    """Of one reward; `catalogue.RESIDUAL` says the same to the store."""
    if reward is None or expected is None:
        return NOTHING
    residual = floor(reward * 65536.0 + 0.5) - expected
    return Residuals(1, residual, residual * residual)


class LearnedItems:
    """Adds rewards to the catalogue's book and takes them out again.

    What is on the way to the disk (`waiting`) cannot be read there yet; what is deleted can still be.
    """

    def __init__(self, catalogue: Catalogue, decisions: Decisions, past: Past) -> None:
        self._catalogue, self._decisions, self._past = catalogue, decisions, past
        self.waiting: dict[Key, Compared] = {}
        self._dropped: set[Key] = set()
        self.on = False

    def start(self) -> None:
        self.on = True
        self._catalogue.learn_effects()

    def expected(self, bound: Bound, x: Vector) -> int | None:
        """What a user with this bound is expected to reward such an item with."""
        return in_units(bound.offset + float(bound.theta @ x)) if self.on else None

    def learn(
        self,
        key: Key,
        row: int,
        item: str,
        expected: int | None,
        reward: float,
        before: float | None = None,
    ) -> bool:
        """Count a reward, in place of the one `before` if there was one; False if it is not counted."""
        if expected is None or not self.on or key in self._dropped:
            return False
        new, old = residuals_of(reward, expected), residuals_of(before, expected)
        self._catalogue.add_residuals(item, new - old)
        known = self.waiting.get(key)
        self.waiting[key] = Compared(row, item, new, 1 if known is None else known.changes + 1)
        return True

    def committed(self, changes: Changes) -> None:
        told: list[Key] = [*changes.rewards, *changes.past]
        for key in told:
            known = self.waiting.get(key)
            if known is not None:
                known.changes -= 1
                if not known.changes:
                    del self.waiting[key]
        self._dropped.difference_update(changes.dropped)

    def forget(self, row: int, changes: Changes) -> None:
        """Take out all rewards of a user, before they are deleted."""
        if not self.on:
            return
        stored = {one[0]: one for one in self._stored(row)}
        fresh = {key: one for key, one in self.waiting.items() if one.row == row}
        self._take_out([one for key, one in stored.items() if key not in fresh], changes)
        for key, one in fresh.items():
            self._catalogue.add_residuals(one.item, NOTHING - one.residuals)
            del self.waiting[key]
            self._drop(key, changes)
        self._catalogue.fit_effects()

    def _stored(self, row: int) -> Iterator[tuple[Key, str, float | None, int | None]]:
        yield from self._decisions.effects_of(row)
        yield from self._past.effects_of(row)

    def forget_old(self, old: list[Old], changes: Changes) -> None:
        """Take out decisions that are dropped now."""
        if self.on:
            self._take_out((one[1:] for one in old), changes)

    def _take_out(
        self, stored: Iterable[tuple[Key, str, float | None, int | None]], changes: Changes
    ) -> None:
        for key, item, reward, expected in stored:
            if key in self._dropped:
                continue
            fresh = self.waiting.pop(key, None)
            own = residuals_of(reward, expected) if fresh is None else fresh.residuals
            self._catalogue.add_residuals(item, NOTHING - own)
            self._drop(key, changes)

    def _drop(self, key: Key, changes: Changes) -> None:
        """Whoever reads the store before these changes are in it would take it out again."""
        self._dropped.add(key)
        changes.dropped.append(key)
