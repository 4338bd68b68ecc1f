"""Rewards outside [0, 1]: who learns from them as they are, who maps or clips them, and says so."""

from typing import Any

import numpy as np
import pytest

import fclub
from fclub.checks import check_policy
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidReward, InvalidSetting

X = np.array([0.6, 0.0, np.sqrt(0.5)])
PLAIN = ["linucb", "greedy", "lin-ts", "shrunk", "club", "sclub", "dis-linucb", "async-linucb"]


def started(name: str, reward: Any, **parameters: Any) -> fclub.Policy:
    policy = fclub.make_policy(name, **parameters)
    policy.start(fclub.Problem(4, 2, 3, np.sqrt(0.5), reward), [0, 0, 1, 1], seed=1)
    return policy


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "lin-ts"])
def test_an_estimate_is_linear_in_the_rewards(name: str) -> None:
    """θ̂ of rewards 10·y is 10·θ̂ of y: nothing is clipped or mapped."""
    rng, twins = np.random.default_rng(0), [started(name, (-99.0, 99.0)) for _ in range(2)]
    for y in rng.normal(size=30):
        for policy, scale in zip(twins, (1.0, 10.0), strict=True):
            policy.update(0, X, scale * y)
    np.testing.assert_allclose(10.0 * twins[0].theta_, twins[1].theta_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PLAIN)
def test_gaussian_rewards_pass_all_checks(name: str) -> None:
    world = Synthetic(users=8, clusters=2, servers=2, dim=3, items=4, noise=0.5)
    check_policy(fclub.make_policy(name), world, rounds=60, deterministic=name != "lin-ts")


@pytest.mark.parametrize("name", ["cdp-fclub-dc", "cdp-fclub-plus", "fclub-plus", "homo"])
@pytest.mark.parametrize(
    ("reward", "given", "learned", "word"),
    [
        ((1.0, 5.0), (1.0, 4.0, 5.0), (0.0, 0.75, 1.0), "mapped"),
        ("unbounded", (-3.0, 0.75, 9.0), (0.0, 0.75, 1.0), "clipped"),
    ],
)
def test_where_rewards_must_be_bounded_they_are_and_the_report_says_so(
    name: str, reward: Any, given: tuple[float, ...], learned: tuple[float, ...], word: str
) -> None:
    other, unit = started(name, reward), started(name, (0.0, 1.0))
    for y, z in zip(given, learned, strict=True):
        other.update(0, X, y)
        unit.update(0, X, z)
    np.testing.assert_array_equal(other.theta_, unit.theta_)
    report = other.privacy_report()
    if not name.startswith("cdp"):
        assert report is None
    else:
        assert report is not None
        assert report["rewards"] == f"{word} to [0, 1]"
        assert "rewards" not in (unit.privacy_report() or {})


@pytest.mark.parametrize("name", ["fclub-dc", "cdp-fclub-dc", "fclub-plus"])
def test_a_federation_passes_all_checks_with_gaussian_rewards(name: str) -> None:
    world = Synthetic(users=8, clusters=2, servers=2, dim=3, items=4, noise=0.5)
    check_policy(fclub.make_policy(name), world, rounds=60)


@pytest.mark.parametrize(
    "reward", [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (0.0,), "wide", 3.0, ("a", "b"), None]
)
def test_a_range_that_is_none_is_refused(reward: Any) -> None:
    with pytest.raises(InvalidSetting, match="low < high"):
        fclub.Problem(4, 2, 3, reward=reward)


def test_a_reward_outside_the_range_is_refused_and_the_error_names_the_setting() -> None:
    with pytest.raises(InvalidReward, match=r"Problem\(reward=") as refusal:
        started("linucb", (1.0, 5.0)).update(0, X, 0.5)
    assert refusal.value.value == 0.5


def test_a_saved_policy_keeps_the_range(tmp_path: Any) -> None:
    for reward in ((1.0, 5.0), "unbounded"):
        policy = started("linucb", reward)
        policy.update(0, X, 4.0)
        policy.save(tmp_path / "policy.npz")
        assert fclub.Policy.load(tmp_path / "policy.npz").problem == policy.problem
