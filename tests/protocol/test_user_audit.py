"""An attack on releases of whole users: what a real server sends with one user's data and without."""

from __future__ import annotations

import numpy as np
import pytest

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
from fclub.privacy.noise import SeededNoise
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
