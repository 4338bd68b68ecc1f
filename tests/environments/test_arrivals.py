"""Who comes when: by which law, and newcomers not before the second half."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fclub
from fclub.core.types import Indices
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidSetting

ROUNDS = 6000


def visitors(environment: fclub.Environment, rounds: int = ROUNDS, seed: int = 3) -> Indices:
    environment.expect_rounds(rounds)
    environment.start(seed)
    found = np.zeros(rounds, dtype=np.int64)
    for t in range(rounds):
        found[t], _ = environment.visit()
        environment.feedback(0)
    return found


def synthetic(**parameters: Any) -> Synthetic:
    return Synthetic(users=30, dim=3, items=2, **parameters)


def deviation(counts: Indices, expected: object) -> float:
    """χ² in standard deviations from its mean."""
    degrees = len(counts) - 1
    square = float(((counts - np.asarray(expected)) ** 2 / np.asarray(expected)).sum())
    return (square - degrees) / np.sqrt(2 * degrees)


def test_users_come_alike() -> None:
    counts = np.bincount(visitors(synthetic()), minlength=30)
    assert abs(deviation(counts, np.full(30, ROUNDS / 30))) < 4


def test_frequencies_follow_zipf_in_random_order() -> None:
    counts = np.bincount(visitors(synthetic(visits="zipf")), minlength=30)
    weight = 1.0 / np.arange(1, 31)
    assert abs(deviation(np.sort(counts)[::-1], ROUNDS * weight / weight.sum())) < 4
    other = np.bincount(visitors(synthetic(visits="zipf"), seed=4), minlength=30)
    assert not np.array_equal(np.argsort(counts), np.arange(30)[::-1])
    assert np.argmax(counts) != np.argmax(other)


def test_users_take_turns() -> None:
    found = visitors(synthetic(visits="round-robin"), rounds=75)
    np.testing.assert_array_equal(found, np.arange(75) % 30)
    with pytest.raises(InvalidSetting, match="newcomers must be 0 with round-robin visits"):
        synthetic(visits="round-robin", newcomers=0.2)


@pytest.mark.parametrize("visits", ["uniform", "zipf"])
def test_newcomers_wait_for_the_second_half(visits: str) -> None:
    environment = synthetic(newcomers=0.3, visits=visits)
    found = visitors(environment)
    late = set(np.flatnonzero(environment.is_newcomer).tolist())
    assert len(late) == 9
    assert not late & set(found[: ROUNDS // 2].tolist())
    assert late <= set(found[ROUNDS // 2 :].tolist())
    early, second = (set(half.tolist()) - late for half in np.split(found, 2))
    assert early == second == set(range(30)) - late
    if visits == "uniform":
        counts = np.bincount(found[ROUNDS // 2 :], minlength=30)
        assert abs(deviation(counts, np.full(30, ROUNDS / 60))) < 4


def test_other_laws_change_neither_users_nor_items() -> None:
    plain, other = synthetic(), synthetic(visits="zipf", newcomers=0.2)
    for environment in (plain, other):
        environment.expect_rounds(10)
        environment.start(1)
    np.testing.assert_array_equal(plain.theta, other.theta)
    np.testing.assert_array_equal(plain.visit()[1], other.visit()[1])


@pytest.mark.parametrize("name", ["synthetic", "ratings", "liked"])
def test_both_loops_meet_the_same_visitors(name: str, write_ratings: Callable[..., Path]) -> None:
    path = {} if name == "synthetic" else {"path": str(write_ratings()), "size": 40}
    environment = fclub.make_environment(
        name, users=20, dim=4, items=5, visits="zipf", newcomers=0.25, **path
    )
    fast, slow = (
        fclub.simulate("linucb", environment, 600, seed=2, fast=way, record_choices=True)
        for way in (True, False)
    )
    np.testing.assert_array_equal(fast.choices, slow.choices)
    np.testing.assert_array_equal(fast.by_visit, slow.by_visit)
    np.testing.assert_array_equal(fast.newcomers_by_visit, slow.newcomers_by_visit)
    assert 0 < len(fast.newcomers_by_visit) <= len(fast.by_visit)


def test_impossible_laws_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="visits"):
        synthetic(visits="sometimes")
    for share in (-0.1, 1.0, np.nan):
        with pytest.raises(InvalidSetting, match="newcomers"):
            synthetic(newcomers=share)
    with pytest.raises(InvalidSetting, match="expect_rounds"):
        synthetic(newcomers=0.5).start(0)
