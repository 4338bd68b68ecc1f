"""Servers broken in ways that neither fixed scenes nor statistics of noise show."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from tests.attack.sabotage import EVENT, INTERACTIVE, POOLED, SECURE, USERS, Sabotage, population

from fclub.attack.pairs import Pair
from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.privacy.noise import DiscreteNoise
from fclub.protocol.exchanges.slots import SlotsLocal
from fclub.service.nodes import parts
from fclub.service.nodes.local_node import Rewards

_integers = DiscreteNoise.integers


def a_seed_of_32_bits(patch: pytest.MonkeyPatch) -> None:
    """Normal noise of the right deviation, from a seed that can be guessed in a day."""

    def seeded(self: Any, deviations: Floats) -> Whole:
        rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
        return np.rint(deviations * rng.standard_normal(np.shape(deviations))).astype(np.int64)

    patch.setattr(DiscreteNoise, "integers", seeded)


def cut_far_out(patch: pytest.MonkeyPatch) -> None:
    """No draw is further away than four and a half deviations."""

    def cut(self: Any, deviations: Floats) -> Whole:
        limit = np.floor(4.5 * deviations).astype(np.int64)
        return np.clip(_integers(self, deviations), -limit, limit)

    patch.setattr(DiscreteNoise, "integers", cut)


def one_pool_for_all(patch: pytest.MonkeyPatch) -> None:
    """Draws are kept for the next source of the process, which begins with the first of them."""
    pool: dict[tuple[int, bytes], Whole] = {}
    calls: dict[int, int] = {}

    def pooled(self: Any, deviations: Floats) -> Whole:
        number = calls[id(self)] = calls.get(id(self), 0) + 1
        key = number, np.asarray(deviations).tobytes()
        if key not in pool:
            pool[key] = _integers(self, deviations)
        return pool[key]

    patch.setattr(DiscreteNoise, "integers", pooled)


def slots_that_wait_for_rewards(patch: pytest.MonkeyPatch) -> None:
    """A slot is not due at some numbers of rewards."""
    due = SlotsLocal.due

    def waiting(self: Any, moment: Any) -> Any:
        return None if int(self.learner.counts.sum()) % 4 == 3 else due(self, moment)

    patch.setattr(SlotsLocal, "due", waiting)


def popularity_in_contributions(patch: pytest.MonkeyPatch) -> None:
    """What a user adds is how its rewards differ from what everybody on this server likes."""
    add = population.add_contributions

    def residual(point: Any, users: Any, *told: Any) -> None:
        own = users.slice(0, len(users.counts)).copy()
        liked = users.moment.sum(axis=0) / max(1, int(users.counts.sum()))
        own.moment[:] -= users.counts[:, None] * liked
        add(point, own, *told)

    patch.setattr(population, "add_contributions", residual)


def imports_released_again(patch: pytest.MonkeyPatch) -> None:
    """Who was forgotten begins anew: what an import brings back is learned like anything else."""

    def learned(self: Any, era: int, row: int, x: Any, reward: float, source: str = "") -> None:
        learn(self, self.node.sessions.era, row, x, reward, source)

    learn = Rewards._learn
    patch.setattr(Rewards, "_learn", learned)


def item_effects_in_contributions(patch: pytest.MonkeyPatch) -> None:
    """A user is taken to have liked what the effect of the item leaves of its reward."""
    learn = Rewards._learn

    def learned(self: Any, era: int, row: int, x: Any, reward: float, source: str = "") -> None:
        offer = self.node.catalogue.offer()
        same = np.flatnonzero((offer.items == x).all(axis=1) & offer.there)
        if len(same) and len(offer.effects.counts):
            effect = float(offer.effects.at(same).effects()[0].mean())
            reward = min(max(reward - effect, 0.0), 1.0)
        learn(self, era, row, x, reward, source)

    patch.setattr(Rewards, "_learn", learned)


def item_effects_at_interactive(patch: pytest.MonkeyPatch) -> None:
    """What an item is worth beyond its features says nothing of anybody, somebody thinks."""
    patch.setattr(parts, "learns_items", lambda constants: True)


def slots_missed_by_who_forgets(patch: pytest.MonkeyPatch) -> None:
    """A sum with a forgotten user is void, somebody thinks, and so is the slot."""

    def forget(self: Any, row: int) -> int:
        self._change()
        self.void, self.again = self.open is not None, False
        return 0

    patch.setattr(SlotsLocal, "forget", forget)


def nothing_from_servers_without_users(patch: pytest.MonkeyPatch) -> None:
    """Who has nothing to say may as well say nothing, somebody thinks."""
    due = SlotsLocal.due

    def only_with_users(self: Any, moment: Any) -> Any:
        return due(self, moment) if len(self.learner.counts) else None

    patch.setattr(SlotsLocal, "due", only_with_users)


FORESEEN: list[tuple[Sabotage, Pair]] = [
    (a_seed_of_32_bits, USERS),
    (a_seed_of_32_bits, POOLED),
    (cut_far_out, USERS),
    (cut_far_out, EVENT),
    (one_pool_for_all, USERS),
    (slots_that_wait_for_rewards, USERS),
    (popularity_in_contributions, USERS),
    (popularity_in_contributions, INTERACTIVE),
    (item_effects_in_contributions, USERS),
    (item_effects_at_interactive, INTERACTIVE),
]
"""To be found by generated histories."""

PRESENCE: list[tuple[Sabotage, Pair]] = [
    (slots_missed_by_who_forgets, SECURE),
    (nothing_from_servers_without_users, USERS),
    (nothing_from_servers_without_users, SECURE),
]
"""They tell whether somebody was there at all."""
