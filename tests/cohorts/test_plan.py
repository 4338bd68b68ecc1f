"""Shares of the noise, ranges, what plans are refused, and what slots cost."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from tests.cohorts.lab import plan_of

from fclub.cohorts.plan import (
    Charge,
    Share,
    colluding,
    draw_share,
    guarantees,
    largest_sum,
    members_needed,
    presumed_charge,
    share_of,
)
from fclub.errors import InvalidSetting, OutOfRange, TooFewMembers
from fclub.privacy.calibration import epsilon_of, mu_of
from fclub.privacy.noise import DiscreteNoise, least_whole
from fclub.privacy.plan import make_plan

DELTA = 1e-5


def alone(members: int) -> list[str]:
    return [f"organisation {number}" for number in range(members)]


@pytest.mark.parametrize("shares", [1, 2, 3, 7, 38])
@pytest.mark.parametrize("deviation", [64, 1_000, 8_388_608, 8_388_609, 2**52])
def test_the_share_is_the_least_whole_number(deviation: int, shares: int) -> None:
    s = least_whole(deviation, shares)
    assert s**2 * shares >= deviation**2 > (s - 1) ** 2 * shares


def test_shares_are_counted_from_the_roster() -> None:
    plan = plan_of(colluders=3)
    for members in (5, 10, 39, 41, 60, 200):
        share = share_of(plan, 0, alone(members))
        assert share.shares == min(38, members - 3)
        assert share.deviation == least_whole(plan.deviations[0], share.shares)
        assert share.members == members


def test_members_of_one_organisation_collude_together() -> None:
    """Organisations of 4, 1 and 1 members: with h = m − C, ε = 1 would be 1.66."""
    owners = ["big"] * 4 + ["b", "c"]
    assert colluding(owners, 1) == 4
    assert share_of(plan_of(), 0, owners).shares == 2
    mu = mu_of(1.0, DELTA)
    assert epsilon_of(mu * sqrt(5 / 2), DELTA) == pytest.approx(1.66, abs=0.005)


def test_colluders_are_those_of_the_federation() -> None:
    """Three may collude however few have come: with C of a roster of four organisations h were 3."""
    plan = plan_of(colluders=3)
    with pytest.raises(TooFewMembers, match="4 of 5 needed are present"):
        share_of(plan, 0, alone(4))
    assert share_of(plan, 0, alone(5)).shares == 2


@pytest.mark.parametrize(
    ("owners", "needed"),
    [([], 3), (["a"], 3), (["a", "b"], 3), (["a", "a", "b"], 4), (["a", "a", "a", "a", "b"], 6)],
)
def test_too_few_members_are_told_how_many_are_needed(owners: list[str], needed: int) -> None:
    plan = plan_of()
    assert members_needed(plan, owners) == needed
    with pytest.raises(TooFewMembers, match=f"{len(owners)} of {needed} needed"):
        share_of(plan, 0, owners)


def test_fewer_organisations_than_colluders_never_sum() -> None:
    with pytest.raises(TooFewMembers):
        share_of(plan_of(colluders=3), 0, ["a"] * 20 + ["b"] * 20)


def test_sums_stay_in_range_or_are_refused() -> None:
    plan = plan_of(users=2**32)
    share = share_of(plan, 0, alone(100))
    exact = 100 * 2**32 * 2**20 + 12 * share.deviation * 10
    assert largest_sum(plan, 0, share) == exact < 2**62
    with pytest.raises(OutOfRange, match="64 bits"):
        share_of(plan_of(users=2**40), 0, alone(4))
    with pytest.raises(OutOfRange, match="at most 1,000 members, got 1,001"):
        share_of(plan, 0, alone(1_001))
    assert largest_sum(plan, 0, Share(10, 7, 100)) == 10 * 2**52 + 12 * 100 * 4


def test_the_cap_keeps_the_floor() -> None:
    def cap(epsilon: float, alone: float) -> int:
        told: dict[str, Any] = {"delta": DELTA, "dim": 3, "users": 100, "members": 9, "visits": (1.0,)}
        return make_plan(epsilon=epsilon, epsilon_alone=alone, **told).cap

    assert cap(1.0, 8.0) == 38
    assert cap(8.0, 8.0) == 1


def test_noise_of_a_share_is_exact_and_of_its_deviation() -> None:
    drawn = draw_share(DiscreteNoise(), 4_000, Share(4, 3, 1_000))
    assert drawn.dtype == np.int64
    assert drawn.std() == pytest.approx(1_000, rel=0.06)


@pytest.mark.parametrize(
    "change",
    [
        {"times": ()},
        {"steps": (1,)},
        {"period": -1},
        {"entries": 0},
        {"users": 0},
        {"colluders": 0},
        {"cap": 0},
        {"window": 0},
        {"window": 1_001},
        {"delay": 400},
        {"tolerance": -1},
        {"times": (2_000, 1_000)},
        {"steps": (0, 1)},
        {"deviations": (64, 1 << 23)},
        {"deviations": (2**53, 1 << 23)},
        {"cap": 10**12},
    ],
    ids=str,
)
def test_impossible_plans_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting, match="plan of secure sums: expected"):
        plan_of(**change)


def test_every_field_of_a_plan_is_in_its_hash() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"federation": "other"},
        {"period": 2},
        {"times": (1_000, 2_001)},
        {"steps": (1 << 20, 1 << 19)},
        {"deviations": (1 << 23, 1 << 22)},
        {"lattice": (2.0**-20, 2.0**-19)},
        {"entries": 6},
        {"users": 999},
        {"colluders": 2},
        {"cap": 37},
        {"window": 399},
        {"tolerance": 61},
        {"delay": 3},
        {"terms": "digest"},
    ]
    assert set().union(*changes) == set(plan_of().__struct_fields__)
    assert len({plan_of(**change).hash for change in changes}) == len(changes)


def test_costs_together_and_alone_for_both_kinds_of_neighbours() -> None:
    """By hand: two slots of μ_r = steps/(s√h), alone steps/s, doubled for replacement."""
    plan = plan_of()
    charges = []
    for slot, members in enumerate((4, 10)):
        share = share_of(plan, slot, alone(members))
        charges.append(Charge(1, slot, *share, b"r"))
    found = guarantees(charges, {1: plan}, DELTA)
    parts = [Fraction(2**40, charge.deviation**2) for charge in charges]
    together = sqrt(sum(part / charge.shares for part, charge in zip(parts, charges, strict=True)))
    assert found.together.mu == pytest.approx(together, rel=1e-12)
    assert found.together.mu == pytest.approx(sqrt(2) / 8, rel=1e-6)
    assert found.alone.mu == pytest.approx(sqrt(float(sum(parts))), rel=1e-12)
    for kind in found:
        assert kind.add_or_remove == pytest.approx(epsilon_of(kind.mu, DELTA), rel=1e-3)
        assert kind.replacement == pytest.approx(epsilon_of(2 * kind.mu, DELTA), rel=1e-3)


def test_a_presumed_charge_is_not_below_any_real_one() -> None:
    plan = plan_of()
    presumed = guarantees([presumed_charge(plan, 0)], {1: plan}, DELTA)
    for members in (3, 10, 39, 100):
        real = guarantees([Charge(1, 0, *share_of(plan, 0, alone(members)), b"")], {1: plan}, DELTA)
        assert presumed.alone.mu >= real.alone.mu
        assert presumed.together.mu == pytest.approx(real.together.mu, rel=1e-5)
