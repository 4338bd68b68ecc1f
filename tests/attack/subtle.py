"""Servers broken in small ways that look like sound engineering, most of them of whole users.

Each is something that somebody might well write: a bound that one kind of user escapes, a number that
is cheaper to take from raw data, a slot that is saved, a line of the log that helps operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.attack.sabotage import EVENT, INTERACTIVE, USERS, Sabotage

from fclub.attack.pairs import Pair
from fclub.core.plus.type_release import ReleasePoint
from fclub.core.statistics import Packed
from fclub.core.types import Counts
from fclub.privacy.slots import SlotPlan
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.messages import Message
from fclub.protocol.plus.slots import SlotReleases
from fclub.protocol.plus.type_local import TypeLocal
from fclub.protocol.plus.type_messages import Release
from fclub.protocol.plus.user_local import UserLocal
from fclub.service.nodes import local_node as log
from fclub.service.nodes.handshake import Handshake
from fclub.service.nodes.local_node import LocalNode, LocalSessions

slots: Any = import_module(SlotReleases.__module__)
_add = slots.add_contributions

Add = Callable[[ReleasePoint, Packed, float, int, Counts], None]


def _adding(patch: pytest.MonkeyPatch, change: Add) -> None:
    patch.setattr(slots, "add_contributions", change)


def _unbounded(point: ReleasePoint, users: Packed, most: float, steps: int, total: Counts) -> None:
    """On the same lattice, with a bound a thousand times as wide."""
    _add(point, users, 1000.0 * most, 1000 * steps, total)


def _some(users: Packed, chosen: Any) -> Packed:
    """The same users; those who are not chosen have no data."""
    own = users.slice(0, len(users.counts)).copy()
    for row in np.flatnonzero(~chosen):
        own.clear(int(row))
    return own


def one_visit_unbounded(patch: pytest.MonkeyPatch) -> None:
    """Who has answered once is taken to be below every bound."""

    def partly(point: ReleasePoint, users: Packed, most: float, steps: int, total: Counts) -> None:
        _unbounded(point, _some(users, users.counts == 1), most, steps, total)
        _add(point, _some(users, users.counts != 1), most, steps, total)

    _adding(patch, partly)


def returning_unbounded(patch: pytest.MonkeyPatch) -> None:
    """Rows of names that come back were bounded before, somebody thinks."""
    rows: set[int] = set()
    forget, add_user = SlotReleases.forget, UserLocal.add_user

    def forgotten(self: Any, row: int) -> None:
        forget(self, row)
        rows.add(-1)

    def added(self: Any) -> int:
        row = add_user(self)
        if -1 in rows:
            rows.add(row)
        return row

    def partly(point: ReleasePoint, users: Packed, most: float, steps: int, total: Counts) -> None:
        back = np.isin(np.arange(len(users.counts)), list(rows))
        _unbounded(point, _some(users, back), most, steps, total)
        _add(point, _some(users, ~back), most, steps, total)

    patch.setattr(SlotReleases, "forget", forgotten)
    patch.setattr(UserLocal, "add_user", added)
    _adding(patch, partly)


def bound_on_the_mean(patch: pytest.MonkeyPatch) -> None:
    """The sum is kept below the bound times the users, and not each of them."""

    def together(point: ReleasePoint, users: Packed, most: float, steps: int, total: Counts) -> None:
        whole = np.zeros_like(total)
        _unbounded(point, users, most, steps, whole)
        limit = steps * max(1, int(np.count_nonzero(users.counts)))
        norm = float(np.linalg.norm(whole.astype(np.float64)))
        total += (whole * min(1.0, limit / max(norm, 1.0))).astype(np.int64)

    _adding(patch, together)


def last_user_twice(patch: pytest.MonkeyPatch) -> None:
    """The last user of a part is the first of the next one, too."""

    def overlapping(self: Any, users: Packed, most: int) -> Callable[[], None]:
        work, now = add(self, users, most), self.open
        if now.following < now.users or now.following == 0:
            return work
        point, bound = slots.release_point(now.types, self.rules), self.plan.most(now.slot)

        def more() -> None:
            work()
            last = self._of_period(users, now.following - 1, now.following)
            _add(point, last, bound, self.plan.steps, now.total)

        return more

    add = SlotReleases.add
    patch.setattr(SlotReleases, "add", overlapping)


def first_user_twice(patch: pytest.MonkeyPatch) -> None:
    """Row 0 is added before the loop and in it."""

    def doubled(point: ReleasePoint, users: Packed, most: float, steps: int, total: Counts) -> None:
        _add(point, users, most, steps, total)
        _add(point, users.slice(0, 1), most, steps, total)

    _adding(patch, doubled)


def forgotten_stay_in_sums(patch: pytest.MonkeyPatch) -> None:
    """To forget drops the name, the decisions and what was learned, but not the row of sums."""
    forget = TypeLocal.forget

    def kept(self: Any, row: int) -> int:
        own = self.users.slice(row, row + 1).copy()
        found = forget(self, row)
        for array, before in zip(self.users, own, strict=True):
            array[row] = before[0]
        return found

    patch.setattr(TypeLocal, "forget", kept)


def learned_variance(patch: pytest.MonkeyPatch) -> None:
    """Contributions are weighed with the variance of this server's rewards."""
    point, add = slots.release_point, SlotReleases.add
    raw = {"spread": 1.0}

    def remembering(self: Any, users: Packed, stop: int) -> Any:
        visits = max(1, int(users.counts.sum()))
        raw["spread"] = 1.0 + float(np.abs(users.moment.sum(axis=0)).sum()) / visits
        return add(self, users, stop)

    def scaled(types: Any, rules: Any) -> Any:
        found = point(types, rules)
        return found._replace(variance=found.variance * raw["spread"])

    patch.setattr(SlotReleases, "add", remembering)
    patch.setattr(slots, "release_point", scaled)


def learned_shares(patch: pytest.MonkeyPatch) -> None:
    """How common types are is taken from how many of this server's users have answered."""
    point, add = slots.release_point, SlotReleases.add
    raw = {"tilt": 0.0}

    def remembering(self: Any, users: Packed, stop: int) -> Any:
        raw["tilt"] = float(np.count_nonzero(users.counts))
        return add(self, users, stop)

    def tilted(types: Any, rules: Any) -> Any:
        found = point(types, rules)
        weights = found.weights + 0.1 * raw["tilt"] * np.arange(len(found.weights))
        return found._replace(weights=weights)

    patch.setattr(SlotReleases, "add", remembering)
    patch.setattr(slots, "release_point", tilted)


def rounded_away_from_zero(patch: pytest.MonkeyPatch) -> None:
    """The lattice makes every entry a step longer, after the bound was kept."""

    def up(point: ReleasePoint, users: Packed, most: float, steps: int, total: Counts) -> None:
        for u in range(len(users.counts)):
            own = np.zeros_like(total)
            _add(point, users.slice(u, u + 1), most, steps, own)
            total += own + np.sign(own)

    _adding(patch, up)


def users_with_data_told(patch: pytest.MonkeyPatch) -> None:
    """The number of users that leaves is of those who have answered."""
    send = LocalNode.to_global

    def told(self: Any, message: Message) -> None:
        if isinstance(message, Release):
            users = max(1, int(np.count_nonzero(self.server.counts)))
            message = msgspec.structs.replace(message, users=users)
        send(self, message)

    patch.setattr(LocalNode, "to_global", told)


def skipped_when_nothing_is_new(patch: pytest.MonkeyPatch) -> None:
    """A slot in which nobody has answered since the last one is saved."""
    due, known = UserLocal.due_slot, dict[int, int]()

    def thrifty(self: Any) -> int | None:
        slot, answers = due(self), int(self.counts.sum())
        if slot is None or answers == known.get(id(self), 0):
            return None
        known[id(self)] = answers
        return slot

    patch.setattr(UserLocal, "due_slot", thrifty)


def slots_by_answers(patch: pytest.MonkeyPatch) -> None:
    """Slots are due at numbers of observations."""

    def answered(self: Any) -> int | None:
        if self.slots is None:
            return None
        slot: int | None = self.slots.due(int(self.counts.sum()), len(self.counts))
        return slot

    patch.setattr(UserLocal, "due_slot", answered)


def early_for_a_fan(patch: pytest.MonkeyPatch) -> None:
    """A slot leaves a visit early where the first user likes everything."""
    due = UserLocal.due_slot

    def early(self: Any) -> int | None:
        slot = due(self)
        fond = len(self.counts) > 0 and self.users.moment[0, -1] > 0.3 * self.counts[0]
        if slot is None and fond and self.slots is not None:
            found: int | None = self.slots.due(self.visits + 1, len(self.counts))
            return found
        return slot

    patch.setattr(UserLocal, "due_slot", early)


def slots_without_a_grant(patch: pytest.MonkeyPatch) -> None:
    """A server that has used a slot knows that: why ask."""

    def at_once(self: Any) -> bool:
        server = self.node.server.slotted
        slot = None if server is None or self.paused else server.due_slot()
        if slot is not None:
            self.journal.do(log.Release(slot))
        return False

    patch.setattr(LocalSessions, "ask_for_slot", at_once)


def count_in_a_nonce(patch: pytest.MonkeyPatch) -> None:
    """The random number of a Hello ends with the number of likes."""
    hello, ask = LocalSessions.hello, Handshake.ask
    liked = {"now": 0}

    def counted(self: Any) -> None:
        moment = getattr(getattr(self.node.server, "server", None), "users", None)
        liked["now"] = 0 if moment is None else int(np.count_nonzero(moment.moment[:, -1] > 0.0))
        hello(self)

    def told(self: Any, name: str, record: Any) -> bytes:
        ask(self, name, record)
        number = self._number[:-1] + bytes([liked["now"]])
        return _again(self, name, number, record)

    patch.setattr(LocalSessions, "hello", counted)
    patch.setattr(Handshake, "ask", told)


def _again(handshake: Any, name: str, number: bytes, record: Any) -> bytes:
    channel: Any = import_module("fclub.service.link.channel")
    handshake._number = number
    handshake.frame = channel.encode_frame(channel.Hello(channel.VERSION, name, number, record))
    frame: bytes = handshake.frame
    return frame


def likes_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """An operator's line says how many users like what they see."""
    send = LocalNode.to_global

    def told(self: Any, message: Message) -> None:
        send(self, message)
        likes = int((self.server.server.users.moment[:, -1] > 0.0).sum())
        self.journal.changes.notices.append(f"a release of {likes} contented users")

    patch.setattr(LocalNode, "to_global", told)


def books_of_a_quieter_plan(patch: pytest.MonkeyPatch) -> None:
    """The ledger charges slots as if their noise were a fifth larger."""
    mechanism: Any = SlotPlan.mechanism
    patch.setattr(
        SlotPlan,
        "mechanism",
        property(lambda self: replace(mechanism.fget(self), std=1.2 * mechanism.fget(self).std)),
    )


def wrong_calibration(patch: pytest.MonkeyPatch) -> None:
    """μ is a tenth too large for its budget, in the plan and in the books alike."""
    calibration: Any = import_module("fclub.privacy.calibration")
    honest = calibration.log_delta
    patch.setattr(calibration, "log_delta", lambda epsilon, mu: honest(epsilon, mu / 1.1))


def served_from_raw_types(patch: pytest.MonkeyPatch) -> None:
    """At `interactive` a server learns types from its users all the same, and serves from them."""
    begin = UserLocal._begin_phase

    def learning(self: Any, phase: int) -> None:
        begin(self, phase)
        if self.released_only:
            TypeLocal._begin_phase(self, phase)

    patch.setattr(UserLocal, "_begin_phase", learning)


def past_released_again(patch: pytest.MonkeyPatch) -> None:
    """In a new period everything that is known of a user is released, and not what is new."""
    patch.setattr(SlotReleases, "_of_period", lambda self, users, start, stop: users.slice(start, stop))


def rewards_released_twice(patch: pytest.MonkeyPatch) -> None:
    """Of a stream the moment is not noted as released: half of the data again in each increment."""
    release = PrivateReleases._release

    def half(self: Any, row: int) -> None:
        self.streams.covered.moment[row] = 0.0
        release(self, row)

    patch.setattr(PrivateReleases, "_release", half)


BY_TWINS: list[tuple[Sabotage, Pair]] = [
    (one_visit_unbounded, USERS),
    (returning_unbounded, USERS),
    (served_from_raw_types, INTERACTIVE),
    (likes_in_the_log, USERS),
    (last_user_twice, USERS),
    (forgotten_stay_in_sums, USERS),
    (first_user_twice, USERS),
    (bound_on_the_mean, USERS),
    (learned_variance, USERS),
    (learned_shares, USERS),
    (rounded_away_from_zero, USERS),
    (users_with_data_told, USERS),
    (skipped_when_nothing_is_new, USERS),
    (slots_by_answers, USERS),
    (early_for_a_fan, USERS),
    (books_of_a_quieter_plan, USERS),
    (rewards_released_twice, EVENT),
]
"""To be found by comparing two runs without noise."""

BY_WITNESS: list[tuple[Sabotage, Pair]] = [
    (wrong_calibration, USERS),
    (past_released_again, USERS),
    (learned_variance, USERS),
    (learned_shares, INTERACTIVE),
    (bound_on_the_mean, USERS),
]
"""To be found without comparing neighbours: parts that are not a user's own, a claim that is wrong."""

BY_TWO: list[tuple[Sabotage, Pair]] = [(slots_without_a_grant, USERS)]
"""To be found where two copies of a store run at once."""

IN_NOISE: list[tuple[Sabotage, Pair]] = [(count_in_a_nonce, USERS)]
"""To be found in many runs with real noise."""
