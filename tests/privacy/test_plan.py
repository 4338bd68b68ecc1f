"""Plans of releases: noise that keeps the guarantee, files to compare, and what is refused."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fclub.core.population.contribution import release_length
from fclub.errors import InvalidSetting
from fclub.privacy.calibration import delta_of, epsilon_of
from fclub.privacy.plan import MOST_SLOTS, Plan, make_plan, read_plan, slot_visits


def some_plan(**changes: Any) -> Plan:
    expected: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "dim": 10,
        "users": 5000,
        "members": 100,
        "visits": slot_visits(20.0),
    }
    return make_plan(**(expected | changes))


def test_all_slots_together_keep_epsilon_and_delta() -> None:
    plan = some_plan()
    bound, sigma = sqrt(plan.steps**2 + plan.count**2), plan.deviation
    mu = sqrt(plan.releases) * bound / sigma
    draws = plan.releases * release_length(10)
    assert delta_of(1.0, mu) + (1 + 2.7183) * draws / (48 * sigma**2) <= 1e-5
    assert delta_of(1.0, 1.001 * mu) > 1e-5
    assert plan.mechanism.cost(1.0, plan.releases) == pytest.approx(plan.mu)


@pytest.mark.parametrize(
    ("members", "factor"), [(3, 1.22), (10, 1.20), (40, 1.22), (100, 1.62), (1000, 5.1)]
)
def test_the_noise_of_a_sum_is_that_of_the_specification(members: int, factor: float) -> None:
    plan = some_plan(members=members)
    assert plan.total(members) / plan.deviation == pytest.approx(factor, abs=0.04)
    honest = members - plan.colluders
    assert plan.share(members) * sqrt(min(honest, plan.cap)) >= plan.deviation
    alone = plan.mu * plan.deviation / plan.share(members)
    assert epsilon_of(alone, 1e-5) <= 8.0 + 1e-6, "whoever colludes"


def test_noise_per_server_is_whole_for_each() -> None:
    plan = some_plan(secure=False)
    assert plan.colluders == 0
    assert plan.share(100) == pytest.approx(plan.deviation, abs=1.0)
    assert plan.total(100) == pytest.approx(10 * plan.deviation, rel=1e-6)


@pytest.mark.parametrize(
    "changes", [{}, {"secure": False}, {"users": 40, "members": 3, "epsilon": 8.0}]
)
def test_as_many_users_without_noise_tell_a_mean_as_exactly(changes: dict[str, Any]) -> None:
    """Contributions of norm N in random directions: the mean squared error of their mean is N²/k."""
    plan, rng, d = some_plan(dim=2, **changes), np.random.default_rng(7), release_length(2)
    errors = []
    for _ in range(400):
        z = rng.normal(size=(plan.users, d))
        z *= plan.steps / np.linalg.norm(z, axis=1, keepdims=True)
        noise = rng.normal(size=(plan.members, d)).sum(axis=0) * plan.share(plan.members)
        errors.append(float(np.sum(((z.sum(axis=0) + noise) / plan.users) ** 2)))
    expected = plan.steps**2 / plan.known
    assert abs(np.mean(errors) - expected) < 4.0 * np.std(errors) / sqrt(len(errors))
    assert plan.known < plan.users


def test_slots_follow_from_expected_visits() -> None:
    assert slot_visits(20.0) == pytest.approx([0.6 * 1.45**r for r in range(10)])
    assert slot_visits(0.5) == (0.45,)
    assert len(slot_visits(1e12)) == MOST_SLOTS
    with pytest.raises(InvalidSetting, match="expected visits must be above 0"):
        slot_visits(0.0)


def test_a_plan_is_a_file_with_a_hash(tmp_path: Path) -> None:
    plan, other = some_plan(start=1e9, seconds_per_visit=86_400.0 * 7), some_plan(users=5001)
    path = tmp_path / "plan.json"
    plan.write(path)
    read = read_plan(path)
    assert read == plan
    assert read.digest == plan.digest != other.digest
    assert read.times[0] == pytest.approx(0.6 * 7 * 86_400)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 1"),
        ({"steps": 10}, "does not keep the guarantee"),
        ({"mu": 3.0}, "does not keep the guarantee"),
        ({"times": (1.0,)}, "each with a time"),
        ({"visits": (2.0, 1.0), "times": (1.0, 2.0)}, "visits of slots must rise"),
        ({"visits": (1.0, 2.0), "times": (2.0, 1.0)}, "times of slots must rise"),
        ({"visits": (0.0, 2.0), "times": (0.0, 1.0)}, "begin after the start"),
        ({"window": 0.0}, "a window is above 0, at most half"),
        ({"window": 1e9}, "a window is above 0, at most half"),
        ({"tolerance": -1.0}, "a window is above 0, at most half"),
        ({"past": -1.0}, "past visits"),
        ({"users": 0}, "needs users"),
        ({"members": 2}, "secure sums need 3 members"),
        ({"colluders": 0}, "at least one member may collude"),
        ({"epsilon_alone": 0.5}, "epsilon_alone must be at least epsilon 1"),
        ({"level": "cdp"}, "is no plan"),
        ({"more": 1}, "is no plan"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(some_plan()) | changes))
    with pytest.raises(InvalidSetting, match=message):
        read_plan(path)


@pytest.mark.parametrize(("epsilon", "alone"), [(1.0, 8.0), (8.0, 8.0), (12.0, 12.0)])
def test_what_is_left_alone_is_eight_or_the_budget(epsilon: float, alone: float) -> None:
    assert some_plan(epsilon=epsilon).epsilon_alone == alone


def test_a_missing_plan_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="fclub plan"):
        read_plan(tmp_path / "plan.json")


def test_a_plan_needs_members() -> None:
    with pytest.raises(InvalidSetting, match="needs members"):
        some_plan(members=0, secure=False)
