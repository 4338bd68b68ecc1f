"""Saving in mid-run and loading continues identically."""

from pathlib import Path

import numpy as np
import pytest

import fclub
from fclub.policies.registry import POLICIES


@pytest.mark.parametrize("name", POLICIES)
def test_continues_identically(name: str, tmp_path: Path) -> None:
    environment = fclub.make_environment("synthetic", users=12, clusters=3, servers=3, dim=4, items=5)
    environment.start(5)
    policy = fclub.make_policy(name)
    policy.reveal(environment.labels)
    policy.start(environment.problem, environment.server_of, seed=1)

    def play(policies: list[fclub.Policy], rounds: int) -> None:
        for _ in range(rounds):
            user, items = environment.visit()
            choices = [p.recommend(user, items) for p in policies]
            assert len(set(choices)) == 1
            reward = environment.feedback(choices[0]).reward
            for p in policies:
                p.update(user, items[choices[0]], reward)

    play([policy], 150)
    policy.save(tmp_path / "state.npz")
    again = fclub.Policy.load(tmp_path / "state.npz")
    play([policy, again], 200)
    np.testing.assert_array_equal(policy.theta_, again.theta_)
    np.testing.assert_array_equal(policy.labels_, again.labels_)
    assert policy.communications == again.communications
