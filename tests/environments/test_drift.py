"""Tastes that change on the way: how often, to what, and for whom the world stays as it was."""

from typing import Any

import numpy as np
import pytest

import fclub
from fclub.core.types import Floats
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidSetting


def world(**parameters: Any) -> Synthetic:
    return Synthetic(users=20, clusters=4, dim=3, items=2, **parameters)


def tastes(environment: Synthetic, rounds: int) -> tuple[list[int], Floats]:
    """Visitors, and everybody's vector after each visit."""
    environment.start(5)
    users, found = [], np.zeros((rounds + 1, 20, 3))
    found[0] = environment.theta
    for t in range(rounds):
        users.append(environment.visit()[0])
        environment.feedback(0)
        found[t + 1] = environment.theta
    return users, found


def test_only_visitors_change_and_only_to_tastes_that_somebody_had() -> None:
    users, found = tastes(world(drift=0.2), 2000)
    changed = (found[1:] != found[:-1]).any(axis=2)
    moved, who = np.nonzero(changed)
    assert who.tolist() == [users[t] for t in moved]
    # One of four draws of another taste finds the one that the user has.
    assert len(moved) == pytest.approx(2000 * 0.2 * 0.75, rel=0.2)
    first = {row.tobytes() for row in found[0]}
    assert {row.tobytes() for row in found[-1]} <= first


def test_without_drift_nothing_is_drawn_for_it() -> None:
    users, found = tastes(world(), 300)
    again, moving = tastes(world(drift=0.5), 300)
    assert users == again
    assert np.array_equal(found[-1], found[0])
    assert np.array_equal(found[0], moving[0])


def test_true_clusters_are_not_known_where_users_move() -> None:
    assert world().knows_clusters
    assert not world(drift=0.1).knows_clusters
    trace = fclub.simulate("linucb", world(drift=0.1), 200)
    assert "ari" not in trace.clusters


def test_both_loops_meet_the_same_tastes() -> None:
    fast, slow = (fclub.simulate("linucb", world(drift=0.1), 400, fast=fast) for fast in (True, False))
    assert fast == slow


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="drift"):
        world(drift=1.0)
