"""Slots: what they cost together, the lattice they are written on, and books of users."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.errors import PrivacyError
from fclub.privacy.calibration import compose, delta_of, epsilon_of, mu_of
from fclub.privacy.ledger import Ledger, read_ledger, write_ledger
from fclub.privacy.levels import INTERACTIVE, PAIRS, TRANSCRIPT, check_pair
from fclub.privacy.noise import SeededNoise
from fclub.privacy.slots import FINENESS, SlotPlan, draw_whole, plan_slots

ENTRIES = 275


@given(
    epsilon=st.floats(0.05, 3_000.0),
    delta=st.sampled_from([1e-7, 1e-5, 0.1]),
    releases=st.integers(1, 100),
)
def test_all_slots_together_cost_the_budget_and_no_more(
    epsilon: float, delta: float, releases: int
) -> None:
    plan = plan_slots(epsilon, delta, ENTRIES, releases)
    assert compose([plan.steps / plan.deviation] * releases) == pytest.approx(plan.mu)
    distance = releases * ENTRIES / (48.0 * plan.deviation**2)
    assert delta_of(epsilon, plan.mu, distance) <= delta * (1.0 + 1e-9)
    assert plan.mu >= 0.9999 * mu_of(epsilon, delta)
    assert plan.deviation >= FINENESS, "so the lemma on rounded and discrete Gaussians holds"
    assert plan.mechanism.charged(releases) / plan.mechanism.std == pytest.approx(plan.mu)


def test_the_largest_budget_fits_into_whole_numbers() -> None:
    largest = plan_slots(1e9, 0.99, 1, 1)
    assert largest == plan_slots(1e4, 0.99, 1, 1)
    assert largest.steps < 2**30
    assert plan_slots(1_000.0, 1e-5, ENTRIES, 24).mu == pytest.approx(mu_of(1_000.0, 1e-5))


def test_noise_is_whole_and_has_its_deviation() -> None:
    drawn = draw_whole(SeededNoise(np.random.default_rng(0)), 40_000, 1234.5)
    assert drawn.dtype == np.int64
    assert drawn.shape == (40_000,)
    assert float(drawn.std()) == pytest.approx(1234.5, rel=0.02)
    assert abs(float(drawn.mean())) < 5 * 1234.5 / 200


def books(plan: SlotPlan) -> Ledger:
    return Ledger(TRANSCRIPT, 1.0, 1e-5, unit="user")


def fill(ledger: Ledger, plan: SlotPlan, server: str, period: int, releases: int) -> None:
    stream = f"{server}/{period}"
    ledger.open(stream, plan.mechanism, 1.0, period)
    for _ in range(releases):
        ledger.release(stream, 7)


def test_a_period_has_the_whole_budget_and_the_total_is_shown() -> None:
    plan = plan_slots(1.0, 1e-5, ENTRIES, 4)
    ledger = books(plan)
    fill(ledger, plan, "a", 0, 4)
    fill(ledger, plan, "b", 0, 2)
    assert ledger.mu == pytest.approx(plan.mu), "users of two servers are different users"
    with pytest.raises(PrivacyError, match="releases"):
        ledger.release("a/0", 1)
    assert ledger.admits(plan.mechanism, 1.0, 1)
    assert not ledger.admits(replace(plan.mechanism, releases=5), 1.0, 1)
    fill(ledger, plan, "a", 3, 4)
    assert ledger.mu == pytest.approx(sqrt(2.0) * plan.mu)
    assert ledger.mu_of_period == pytest.approx(plan.mu)
    shown = ledger.account([1e-5])
    assert shown["unit"] == "user"
    both, one = ledger.distance, plan.mechanism.distance(4)
    assert both == pytest.approx(2.0 * one) == pytest.approx(2.0 * 4 * ENTRIES / 48 / plan.deviation**2)
    assert shown["spent"] == [[epsilon_of(ledger.mu, 1e-5, both), 1e-5]]
    assert shown["spent_if_replaced"] == [[epsilon_of(2.0 * ledger.mu, 1e-5, both), 1e-5]]
    period = [[epsilon_of(ledger.mu_of_period, 1e-5, one), 1e-5]]
    assert shown["period"] == {"number": 3, "spent": period}
    assert books(plan).account([0.1])["period"] == {"number": 0, "spent": [[0.0, 0.1]]}


def test_books_of_users_are_read_again_as_such(tmp_path: Path) -> None:
    plan = plan_slots(1.0, 1e-5, ENTRIES, 4)
    ledger = books(plan)
    fill(ledger, plan, "a", 0, 3)
    write_ledger(ledger, tmp_path / "ledger")
    again = read_ledger(tmp_path / "ledger")
    assert again.unit == "user"
    assert again.events == ledger.events
    assert b'"unit":"user"' in (tmp_path / "ledger").read_bytes().splitlines()[2]
    events = Ledger(TRANSCRIPT, 1.0, 1e-5)
    write_ledger(events, tmp_path / "events")
    assert b"unit" not in (tmp_path / "events").read_bytes(), "older files had none, and meant events"
    assert read_ledger(tmp_path / "events").unit == "event"


def test_pairs_of_unit_and_level() -> None:
    for unit, level in PAIRS:
        check_pair(unit, level)
    with pytest.raises(PrivacyError, match=r"\(user, interactive\)"):
        check_pair("user", "cdp")
    Ledger(INTERACTIVE, 1.0, 0.1, unit="user")
