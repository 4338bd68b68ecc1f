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
from tests.attack.sabotage import EVENT, INTERACTIVE, USERS, Sabotage, population

from fclub.attack.pairs import VISIT, Pair
from fclub.core.population.contribution import PublicPoint
from fclub.core.statistics import Packed
from fclub.core.types import Counts
from fclub.privacy.plan import Plan
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.exchanges.slots import Release, SlotsLocal
from fclub.protocol.learners.population import PopulationLearner
from fclub.protocol.learners.types_at_home import TypesAtHome
from fclub.protocol.messages import Message
from fclub.service.nodes.handshake import Handshake
from fclub.service.nodes.local_node import LocalNode, LocalSessions

_add = population.add_contributions

Add = Callable[[PublicPoint, Packed, float, int, int, Counts], None]


def _adding(patch: pytest.MonkeyPatch, change: Add) -> None:
    patch.setattr(population, "add_contributions", change)


def _unbounded(
    point: PublicPoint, users: Packed, most: float, steps: int, count: int, total: Counts
) -> None:
    """On the same lattice, with a bound eight times as wide."""
    _add(point, users, 8.0 * most, 8 * steps, count, total)


def _some(users: Packed, chosen: Any) -> Packed:
    """The same users; those who are not chosen have no data."""
    own = users.slice(0, len(users.counts)).copy()
    for row in np.flatnonzero(~chosen):
        own.clear(int(row))
    return own


def _parted(patch: pytest.MonkeyPatch, choose: Callable[[Packed], Any]) -> None:
    """Some users are not bounded."""

    def partly(point: PublicPoint, users: Packed, *told: Any) -> None:
        chosen = choose(users)
        _unbounded(point, _some(users, chosen), *told)
        _add(point, _some(users, ~chosen), *told)

    _adding(patch, partly)


def two_visits_unbounded(patch: pytest.MonkeyPatch) -> None:
    """Who has answered once or twice is taken to be below every bound."""
    _parted(patch, lambda users: users.counts <= 2)


def returning_unbounded(patch: pytest.MonkeyPatch) -> None:
    """Rows of names that come back were bounded before, somebody thinks."""
    rows: set[int] = set()
    forget, add_user = TypesAtHome.forget, TypesAtHome.add_user

    def forgotten(self: Any, row: int) -> None:
        forget(self, row)
        rows.add(-1)

    def added(self: Any) -> int:
        row = add_user(self)
        if -1 in rows:
            rows.add(row)
        return row

    patch.setattr(TypesAtHome, "forget", forgotten)
    patch.setattr(TypesAtHome, "add_user", added)
    _parted(patch, lambda users: np.isin(np.arange(len(users.counts)), list(rows)))


def bound_on_the_mean(patch: pytest.MonkeyPatch) -> None:
    """The sum is kept below the bound times the users, and not each of them."""

    def together(
        point: PublicPoint, users: Packed, most: float, steps: int, count: int, total: Counts
    ) -> None:
        whole = np.zeros_like(total)
        _unbounded(point, users, most, steps, count, whole)
        limit = steps * max(1, int(np.count_nonzero(users.counts)))
        norm = float(np.linalg.norm(whole.astype(np.float64)))
        total += (whole * min(1.0, limit / max(norm, 1.0))).astype(np.int64)

    _adding(patch, together)


def last_user_twice(patch: pytest.MonkeyPatch) -> None:
    """The last user of a part is the first of the next one, too."""

    def overlapping(point: PublicPoint, users: Packed, *told: Any) -> None:
        _add(point, users, *told)
        _add(point, users.slice(len(users.counts) - 1, len(users.counts)), *told)

    _adding(patch, overlapping)


def first_user_twice(patch: pytest.MonkeyPatch) -> None:
    """Row 0 is added before the loop and in it."""

    def doubled(point: PublicPoint, users: Packed, *told: Any) -> None:
        _add(point, users, *told)
        _add(point, users.slice(0, 1), *told)

    _adding(patch, doubled)


def forgotten_stay_in_sums(patch: pytest.MonkeyPatch) -> None:
    """To forget drops the name and the decisions, but not the row of sums."""
    patch.setattr(TypesAtHome, "forget", lambda self, row: None)


def learned_variance(patch: pytest.MonkeyPatch) -> None:
    """Contributions are weighed with the variance of this server's rewards."""

    def scaled(point: PublicPoint, users: Packed, *told: Any) -> None:
        visits = max(1, int(users.counts.sum()))
        spread = 1.0 + float(np.abs(users.moment.sum(axis=0)).sum()) / visits
        _add(point._replace(variance=point.variance * spread), users, *told)

    _adding(patch, scaled)


def learned_spread(patch: pytest.MonkeyPatch) -> None:
    """How far tastes spread is taken from how many of this server's users have answered."""

    def tilted(point: PublicPoint, users: Packed, *told: Any) -> None:
        answered = int(np.count_nonzero(users.counts))
        _add(point._replace(root=point.root * (1.0 + 0.1 * answered)), users, *told)

    _adding(patch, tilted)


def rounded_away_from_zero(patch: pytest.MonkeyPatch) -> None:
    """The lattice makes every entry a step longer, after the bound was kept."""

    def up(
        point: PublicPoint, users: Packed, most: float, steps: int, count: int, total: Counts
    ) -> None:
        for u in range(len(users.counts)):
            own = np.zeros_like(total)
            _add(point, users.slice(u, u + 1), most, steps, count, own)
            total += own + 1000 * np.sign(own)

    _adding(patch, up)


def users_with_data_told(patch: pytest.MonkeyPatch) -> None:
    """A release says how many users have answered."""
    send = LocalNode.to_global

    def told(self: Any, message: Message) -> None:
        if isinstance(message, Release):
            users = int(np.count_nonzero(self.server.counts))
            message = msgspec.structs.replace(message, told=users)
        send(self, message)

    patch.setattr(LocalNode, "to_global", told)


_due = SlotsLocal.due


def skipped_when_nothing_is_new(patch: pytest.MonkeyPatch) -> None:
    """A slot in which nobody has answered since the last one is saved."""
    known = dict[int, int]()

    def thrifty(self: Any, moment: Any) -> Any:
        begin, answers = _due(self, moment), int(self.learner.counts.sum())
        if begin is None or getattr(begin, "func", None) != self._begin_slot:
            return begin
        if answers == known.get(id(self), 0):
            return None
        known[id(self)] = answers
        return begin

    patch.setattr(SlotsLocal, "due", thrifty)


def slots_by_answers(patch: pytest.MonkeyPatch) -> None:
    """Slots are due at numbers of observations, which the plan's times are translated to."""

    def answered(self: Any, moment: Any) -> Any:
        if moment is None:
            return None
        now = self.plan.start + VISIT * int(self.learner.counts.sum())
        return _due(self, moment._replace(now=now, began=0.0))

    patch.setattr(SlotsLocal, "due", answered)


def early_for_a_fan(patch: pytest.MonkeyPatch) -> None:
    """A slot leaves a visit early where the first user likes everything."""

    def early(self: Any, moment: Any) -> Any:
        counts, moments = self.learner.counts, self.learner.users.moment
        fond = len(counts) > 0 and moments[0, -1] > 0.3 * counts[0]
        return _due(self, moment._replace(now=moment.now + VISIT) if moment and fond else moment)

    patch.setattr(SlotsLocal, "due", early)


def count_in_a_nonce(patch: pytest.MonkeyPatch) -> None:
    """The random number of a Hello ends with the number of likes."""
    hello, ask = LocalSessions.hello, Handshake.ask
    liked = {"now": 0}

    def counted(self: Any) -> None:
        liked["now"] = int(np.count_nonzero(self.node.server.learner.users.moment[:, -1] > 0.0))
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
        likes = int((self.server.learner.users.moment[:, -1] > 0.0).sum())
        self.journal.changes.notices.append(f"a release of {likes} contented users")

    patch.setattr(LocalNode, "to_global", told)


def books_of_a_quieter_plan(patch: pytest.MonkeyPatch) -> None:
    """The ledger charges slots as if their noise were a fifth larger."""
    mechanism: Any = Plan.mechanism
    patch.setattr(
        Plan,
        "mechanism",
        property(lambda self: replace(mechanism.fget(self), std=1.2 * mechanism.fget(self).std)),
    )


def wrong_calibration(patch: pytest.MonkeyPatch) -> None:
    """μ is a tenth too large for its budget, in the plan and in the books alike."""
    calibration: Any = import_module("fclub.privacy.calibration")
    honest = calibration.log_delta
    patch.setattr(calibration, "log_delta", lambda epsilon, mu: honest(epsilon, mu / 1.1))


def served_from_neighbours(patch: pytest.MonkeyPatch) -> None:
    """At `interactive` items that are liked on this server are shown more often all the same."""
    bound = PopulationLearner.bound

    def popular(self: Any, row: int) -> Any:
        found = bound(self, row)
        liked = self.users.moment.sum(axis=0) / max(1, int(self.counts.sum()))
        return found._replace(theta=found.theta + 0.1 * liked)

    patch.setattr(PopulationLearner, "bound", popular)


def rewards_released_twice(patch: pytest.MonkeyPatch) -> None:
    """Of a stream the moment is not noted as released: half of the data again in each increment."""
    release = PrivateReleases._release

    def half(self: Any, row: int) -> None:
        self.streams.covered.moment[row] = 0.0
        release(self, row)

    patch.setattr(PrivateReleases, "_release", half)


BY_TWINS: list[tuple[Sabotage, Pair]] = [
    (two_visits_unbounded, USERS),
    (returning_unbounded, USERS),
    (served_from_neighbours, INTERACTIVE),
    (likes_in_the_log, USERS),
    (last_user_twice, USERS),
    (forgotten_stay_in_sums, USERS),
    (first_user_twice, USERS),
    (bound_on_the_mean, USERS),
    (learned_variance, USERS),
    (learned_spread, USERS),
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
    (learned_variance, USERS),
    (learned_spread, INTERACTIVE),
    (bound_on_the_mean, USERS),
]
"""To be found without comparing neighbours: parts that are not a user's own, a claim that is wrong."""

IN_NOISE: list[tuple[Sabotage, Pair]] = [(count_in_a_nonce, USERS)]
"""To be found in many runs with real noise."""
