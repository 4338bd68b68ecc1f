"""Servers broken on purpose, each in one way, by patching the code that a deployment runs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import inf
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from fclub.attack.pairs import Pair
from fclub.core.lattice import STEP, Whole
from fclub.core.types import Floats
from fclub.privacy.noise import DiscreteNoise
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.exchanges.slots import Release, SlotsLocal
from fclub.protocol.exchanges.user_streams import Digest, UserStreamLocal
from fclub.protocol.interfaces.exchange import Beginning
from fclub.protocol.messages import Message
from fclub.protocol.servers import LocalServer
from fclub.service.nodes.local_node import LocalNode

Sabotage = Callable[[pytest.MonkeyPatch], None]

EVENT = Pair("cdp-fclub-plus", "event", "transcript")
GROUPED = Pair("cdp-fclub-plus", "event", "cdp")
POOLED = Pair("cdp-homo", "event", "transcript")
USERS = Pair("cdp-fclub-plus", "user", "transcript")
SECURE = Pair("cdp-fclub-plus", "user", "transcript", secure=True)
INTERACTIVE = Pair("cdp-fclub-plus", "user", "interactive")
PRINTED = Pair("cdp-fclub-dc", "event", "cdp")

population: Any = import_module("fclub.protocol.learners.population")

_integers = DiscreteNoise.integers


def _draw(patch: pytest.MonkeyPatch, change: Callable[[Any, Floats], Whole]) -> None:
    patch.setattr(DiscreteNoise, "integers", change)


def one_draw_for_two(patch: pytest.MonkeyPatch) -> None:
    """Every draw is handed out twice: to two users, two slots, two nodes of a tree."""
    kept: list[Whole] = []

    def again(self: Any, deviations: Floats) -> Whole:
        if kept and kept[0].shape == np.shape(deviations):
            return kept.pop()
        kept[:] = [_integers(self, deviations)]
        return kept[0]

    _draw(patch, again)


def last_entry_quieter(patch: pytest.MonkeyPatch) -> None:
    """The last number of every release has three quarters of its deviation."""

    def quieter(self: Any, deviations: Floats) -> Whole:
        scale = np.array(deviations, dtype=np.float64)
        scale.ravel()[-1] *= 0.75
        return _integers(self, scale)

    _draw(patch, quieter)


def seed_from_a_counter(patch: pytest.MonkeyPatch) -> None:
    """Noise of a generator whose seed is the number of the draw in this node."""

    def counted(self: Any, deviations: Floats) -> Whole:
        node = _owner.get("node")
        number = _owner[id(node)] = _owner.get(id(node), 0) + 1
        rng = np.random.default_rng(number)
        return np.rint(deviations * rng.standard_normal(np.shape(deviations))).astype(np.int64)

    _owner: dict[Any, Any] = {}
    start = LocalNode.__init__

    def remembered(self: Any, *args: Any, **named: Any) -> None:
        _owner["node"] = self
        start(self, *args, **named)

    patch.setattr(LocalNode, "__init__", remembered)
    _draw(patch, counted)


def cut_tails(patch: pytest.MonkeyPatch) -> None:
    """No draw is further away than two and a half deviations."""

    def cut(self: Any, deviations: Floats) -> Whole:
        limit = np.floor(2.5 * deviations).astype(np.int64)
        return np.clip(_integers(self, deviations), -limit, limit)

    _draw(patch, cut)


def scale_by_data(patch: pytest.MonkeyPatch) -> None:
    """A twentieth more noise where the newest reward was high, a twentieth less where it was not."""
    state = {"scale": 1.0}
    observe: Any = LocalServer.observe

    def watched(self: Any, row: int, x: Any, *given: Any, **named: Any) -> None:
        if row == 0 and int(self.learner.counts[0]) == 0:
            state["scale"] = 1.05 if x[0] > 0.0 else 0.95
        observe(self, row, x, *given, **named)

    patch.setattr(LocalServer, "observe", watched)

    def scaled(self: Any, deviations: Floats) -> Whole:
        return _integers(self, state["scale"] * np.asarray(deviations))

    _draw(patch, scaled)


def scale_by_presence(patch: pytest.MonkeyPatch) -> None:
    """The same of whole users: more noise while the first user has data."""
    release = SlotsLocal._release

    def scaled(self: Any, slot: int, told: int, sums: Any) -> None:
        factor, source = 1.05 if self.learner.counts[0] else 0.95, self.noise
        self.noise = SimpleNamespace(
            integers=lambda deviations: source.integers(factor * np.asarray(deviations))
        )
        try:
            release(self, slot, told, sums)
        finally:
            self.noise = source

    patch.setattr(SlotsLocal, "_release", scaled)


def doubles(patch: pytest.MonkeyPatch) -> None:
    """A release has bits below a lattice step."""
    release = PrivateReleases._release

    def rough(self: Any, row: int) -> None:
        release(self, row)
        self.streams.released.gram[row, 0, 0] += STEP / 3.0

    patch.setattr(PrivateReleases, "_release", rough)


def released_again_after_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """An old store goes on with its streams, and charges nothing for what it has forgotten."""
    patch.setattr(PrivateReleases, "close", lambda self: None)


def slots_used_again_after_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """A process does not mind when it began, and an old store believes that it has used nothing."""
    due = SlotsLocal.due

    def always(self: Any, moment: Any) -> Any:
        return due(self, None if moment is None else moment._replace(began=-inf))

    patch.setattr(SlotsLocal, "due", always)
    begin = SlotsLocal.start_session

    def unused(self: Any, beginning: Beginning) -> None:
        begin(self, beginning._replace(used=0))

    patch.setattr(SlotsLocal, "start_session", unused)


def forgone_slots_not_charged(patch: pytest.MonkeyPatch) -> None:
    """Slots that a lost copy has used are not used again, but the ledger never hears of them."""
    patch.setattr(SlotsLocal, "_presume", SlotsLocal._leave_out)


def raw_partition(patch: pytest.MonkeyPatch) -> None:
    """Level `transcript` is claimed, and streams are numbered by types of raw data."""
    report = UserStreamLocal._report

    def numbered(self: Any, phase: int) -> None:
        taste = self.learner.users.moment[:, 0] > 0.0
        self.numbers = (np.arange(len(taste)) + len(taste) * taste).tolist()
        report(self, phase)

    patch.setattr(UserStreamLocal, "_report", numbered)


def ordered_by_rewards(patch: pytest.MonkeyPatch) -> None:
    """Entries of a digest in the order of their users' raw rewards."""
    send = LocalNode.to_global

    def ordered(self: Any, message: Message) -> None:
        if isinstance(message, Digest) and len(message.news) > 1:
            moments = self.server.learner.users.moment[: len(message.news), -1]
            order = np.argsort(moments, kind="stable")
            message = msgspec.structs.replace(message, news=tuple(message.news[i] for i in order))
        send(self, message)

    patch.setattr(LocalNode, "to_global", ordered)


def released_when_liked(patch: pytest.MonkeyPatch) -> None:
    """Nothing leaves before enough rewards were high."""
    due: Any = LocalServer.due

    def when_liked(self: Any, moment: Any = None) -> Any:
        return due(self, moment) if self.learner.users.moment[:, -1].sum() > 0.0 else None

    patch.setattr(LocalServer, "due", when_liked)


def rewards_counted(patch: pytest.MonkeyPatch) -> None:
    """A release says of how many rewards it is."""
    send = LocalNode.to_global

    def counted(self: Any, message: Message) -> None:
        if isinstance(message, Release):
            message = msgspec.structs.replace(message, told=int(self.server.counts.sum()))
        send(self, message)

    patch.setattr(LocalNode, "to_global", counted)


def weights_from_raw_neighbours(patch: pytest.MonkeyPatch) -> None:
    """Contributions are taken at a mean that all users' raw data have moved."""
    add = population.add_contributions

    def moved(point: Any, users: Any, *told: Any) -> None:
        mean = users.moment.sum(axis=0) / max(1, int(users.counts.sum()))
        add(point._replace(mean=point.mean + 5.0 * mean), users, *told)

    patch.setattr(population, "add_contributions", moved)


def bound_lost_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    """After a restart a user may add twice as much."""
    restore, add = SlotsLocal.restore, population.add_contributions

    def restored(self: Any, *given: Any) -> None:
        restore(self, *given)
        wide["on"] = True

    def twice(point: Any, users: Any, most: float, steps: int, count: int, total: Any) -> None:
        add(point, users, most, steps * (2 if wide["on"] else 1), count, total)

    wide = {"on": False}
    patch.setattr(SlotsLocal, "restore", restored)
    patch.setattr(population, "add_contributions", twice)


def budget_renewed_by_forgetting(patch: pytest.MonkeyPatch) -> None:
    """Where somebody is forgotten, slots begin again."""
    forget = SlotsLocal.forget

    def renewed(self: Any, row: int) -> int:
        found = forget(self, row)
        self.following = 0
        return found

    patch.setattr(SlotsLocal, "forget", renewed)


def no_noise_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    restore = PrivateReleases.restore

    def quiet(self: Any, *given: Any) -> None:
        restore(self, *given)
        self._deviations = np.zeros_like(self._deviations)

    patch.setattr(PrivateReleases, "restore", quiet)


def data_released_twice(patch: pytest.MonkeyPatch) -> None:
    """Every increment begins with the first observations again."""
    release = PrivateReleases._release

    def whole(self: Any, row: int) -> None:
        self.streams.covered.gram[row] = 0.0
        self.streams.covered.moment[row] = 0.0
        release(self, row)

    patch.setattr(PrivateReleases, "_release", whole)


NOISE: list[Sabotage] = [one_draw_for_two, last_entry_quieter, seed_from_a_counter, cut_tails]
IN_NOISE: list[tuple[Sabotage, Pair]] = [
    *((sabotage, pair) for sabotage in NOISE for pair in (EVENT, USERS)),
    (one_draw_for_two, PRINTED),
    (seed_from_a_counter, PRINTED),
    (last_entry_quieter, GROUPED),
    (scale_by_data, EVENT),
    (scale_by_data, POOLED),
    (scale_by_data, PRINTED),
    (scale_by_presence, USERS),
    (no_noise_after_a_restart, POOLED),
]
"""What is broken, and whose promise: to be found in many runs with real noise."""

BY_TWINS: list[tuple[Sabotage, Pair]] = [
    (doubles, EVENT),
    (doubles, POOLED),
    (released_again_after_a_rollback, EVENT),
    (released_again_after_a_rollback, GROUPED),
    (released_again_after_a_rollback, POOLED),
    (slots_used_again_after_a_rollback, USERS),
    (forgone_slots_not_charged, INTERACTIVE),
    (raw_partition, EVENT),
    (ordered_by_rewards, EVENT),
    (released_when_liked, EVENT),
    (released_when_liked, POOLED),
    (rewards_counted, USERS),
    (weights_from_raw_neighbours, USERS),
    (bound_lost_in_a_restart, USERS),
    (budget_renewed_by_forgetting, USERS),
    (data_released_twice, EVENT),
]
"""To be found by comparing two runs without noise."""
