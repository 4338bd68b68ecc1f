"""An attack on releases of whole users: what a real server sends with one user's data and without."""

from __future__ import annotations

import numpy as np
import pytest

from fclub.core.lattice import Whole
from fclub.core.plus.type_filter import FilterRules
from fclub.core.plus.type_release import release_length
from fclub.core.statistics import Packed
from fclub.core.types import Floats
from fclub.privacy.audit import (
    eigenvalue_intervals,
    linear_discriminant,
    mu_lower_bound,
    trace_interval,
    whitened,
)
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import TRANSCRIPT
from fclub.privacy.noise import NoiseSource, NoNoise, SeededNoise
from fclub.privacy.slots import plan_slots
from fclub.protocol.plus.slots import SlotReleases
from fclub.protocol.plus.type_messages import read_noised

DIM, TYPES, HALF, TRIALS, SLOTS = 3, 2, float(np.sqrt(0.5)), 1500, 3
RULES = FilterRules(TYPES, DIM, HALF)
ENTRIES = release_length(TYPES, DIM)


def crowd(withdrawn: bool) -> Packed:
    """Three users; the first has so many visits that its contribution is as long as the bound."""
    rng, users = np.random.default_rng(1), Packed.zeros(3, DIM)
    for u, visits in enumerate((400, 6, 9)):
        X = np.column_stack([rng.uniform(-0.4, 0.4, (visits, DIM - 1)), np.full(visits, HALF)])
        y = np.full(visits, 0.5) if u == 0 else rng.integers(0, 2, visits) - 0.5
        users.gram[u], users.moment[u], users.counts[u] = X.T @ X, X.T @ y, visits
    if withdrawn:
        users.clear(0)
    return users


def transcripts(epsilon: float, withdrawn: bool, weaker: float = 1.0, seed: int = 0) -> Floats:
    """All slots of a server in many independent runs, in lattice steps, one run a row."""
    plan = plan_slots(epsilon, 1e-5, ENTRIES, releases=SLOTS)
    source, users = SeededNoise(np.random.default_rng(seed + withdrawn)), crowd(withdrawn)
    rows = []
    for _ in range(TRIALS):
        ledger = Ledger(TRANSCRIPT, epsilon, 1e-5, unit="user")
        server = SlotReleases(plan, RULES, source, ledger, "s")
        sent = [server.release(slot, users, 10 * slot) for slot in range(SLOTS)]
        rows.append(np.concatenate([read_noised(message.sums, TYPES, DIM) for message in sent]))
    found = np.array(rows)
    mean = found.mean(axis=0)
    return np.asarray(mean + weaker * (found - mean), dtype=np.float64)


def proved(first: Floats, second: Floats) -> float:
    """A lower bound on μ from a discriminant that was trained on half of the runs."""
    half = TRIALS // 2
    direction = linear_discriminant(first[:half], second[:half])
    scores = first @ direction, second @ direction
    train, test = (tuple(side[part] for side in scores) for part in (slice(half), slice(half, None)))
    return mu_lower_bound((train[0], train[1]), (test[0], test[1]))


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_one_user_is_no_easier_to_find_than_was_claimed(epsilon: float) -> None:
    plan = plan_slots(epsilon, 1e-5, ENTRIES, releases=SLOTS)
    first, second = (transcripts(epsilon, withdrawn) for withdrawn in (False, True))
    shift = np.linalg.norm((first - second).mean(axis=0)) / plan.deviation
    assert shift == pytest.approx(plan.mu, abs=0.25), "the user attains its bound"
    assert proved(first, second) <= plan.mu
    covariance = plan.deviation**2 * np.eye(SLOTS * ENTRIES)
    white = whitened(first, covariance)
    assert trace_interval(white).inside
    assert all(interval.inside for interval in eigenvalue_intervals(white))


def test_weaker_noise_is_noticed() -> None:
    plan = plan_slots(8.0, 1e-5, ENTRIES, releases=SLOTS)
    first, second = (transcripts(8.0, withdrawn, weaker=0.4) for withdrawn in (False, True))
    covariance = plan.deviation**2 * np.eye(SLOTS * ENTRIES)
    assert not trace_interval(whitened(first, covariance)).inside
    assert proved(first, second) > plan.mu


class Remembering:
    """Gives noise that nobody would draw, and remembers for which deviations it was asked."""

    seeded = False

    def __init__(self) -> None:
        self.asked: list[Floats] = []

    def integers(self, deviations: Floats) -> Whole:
        self.asked.append(deviations)
        numbers = np.arange(1, len(deviations) + 1, dtype=np.int64) * (10**9 + len(self.asked))
        return np.where(np.arange(len(deviations)) % 2 == 0, numbers, -numbers)


def people(visits: list[int], silent: int | None = None) -> Packed:
    """Users with so many visits each, all of whom like what they see; one may have none."""
    users = Packed.zeros(len(visits), DIM)
    for u, count in enumerate(visits):
        rng = np.random.default_rng([5, u])
        X = np.column_stack([rng.uniform(-0.4, 0.4, (count, DIM - 1)), np.full(count, HALF)])
        if u != silent:
            users.gram[u], users.moment[u], users.counts[u] = X.T @ X, X.sum(axis=0) / 2, count
    return users


def sent(users: Packed, source: NoiseSource, days: float = 0.0) -> Floats:
    """All slots of one server, each in two parts, in lattice steps."""
    plan = plan_slots(8.0, 1e-5, ENTRIES, 0.01, SLOTS, days=days)
    server = SlotReleases(plan, RULES, source, Ledger(TRANSCRIPT, 8.0, 1e-5, unit="user"), "s")
    for row in range(len(users.counts)):
        server.add_user()
        server.visit(row, Packed.zeros(len(users.counts), DIM))
    rows = []
    for slot in range(SLOTS):
        server.begin_slot(slot, len(users.counts), 10 * slot)
        while not server.whole:
            server.add(users, 2)()
        rows.append(read_noised(server.finish().sums, TYPES, DIM))
    return np.array(rows)


@pytest.mark.parametrize("visits", [[0, 0, 0], [1, 0, 3], [400, 6, 9]])
def test_what_leaves_is_the_exact_sum_and_one_draw_for_each_number(visits: list[int]) -> None:
    """Whatever the source gives: all of it, for every entry, with the plan's deviation, once a slot."""
    source, plan = Remembering(), plan_slots(8.0, 1e-5, ENTRIES, 0.01, SLOTS)
    noise = sent(people(visits), source) - sent(people(visits), NoNoise())
    assert [asked.tolist() for asked in source.asked] == SLOTS * [ENTRIES * [plan.deviation]]
    again = Remembering()
    assert np.array_equal(noise, [again.integers(asked) for asked in source.asked])


@pytest.mark.parametrize("days", [0.0, 30.0])
@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("count", [1, 2, 400])
def test_whoever_it_is_adds_its_own_bounded_vector(count: int, row: int, days: float) -> None:
    """First or last, in the same part as others or not, after one visit or many."""
    visits = [6, 9, 4]
    visits[row] = count
    others = [count if u == row else 0 for u in range(3)]
    plan = plan_slots(8.0, 1e-5, ENTRIES, 0.01, SLOTS)
    with_all, without, alone, nobody = (
        sent(users, NoNoise(), days)
        for users in (people(visits), people(visits, row), people(others), people([0, 0, 0]))
    )
    lengths = np.linalg.norm(with_all - without, axis=1)
    assert np.all((lengths > 0.9 * plan.steps) & (lengths <= plan.steps)), "it attains its bound"
    assert not nobody.any()
    assert np.array_equal(with_all - without, alone), "whatever the others do"
