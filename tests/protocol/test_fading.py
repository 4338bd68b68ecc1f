"""Servers whose users' old observations fade: served from what is left, shared in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fclub
from fclub.config import Problem
from fclub.core.plus.fading import keep_share, mean_weight
from fclub.environments.registry import make_environment
from fclub.errors import InvalidSetting
from fclub.policies.registry import make_policy
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.rounds import decode
from fclub.protocol.families import make_family
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.learners.types import Types
from fclub.protocol.link import InProcessLink

DIM, HALF, HALF_LIFE = 3, float(np.sqrt(0.5)), 6.0
Items = np.ndarray[Any, np.dtype[np.float64]]


def started(users: int = 12, **parameters: Any) -> Any:
    policy = make_policy("fclub-plus", types=4, half_life=HALF_LIFE, **parameters)
    policy.start(Problem(users, 2, DIM, HALF), np.arange(users) % 2, seed=3)
    return policy


def play(policy: Any, rounds: int, seed: int = 0) -> list[int]:
    rng, choices = np.random.default_rng(seed), []
    for _ in range(rounds):
        user, angles = int(rng.integers(policy.problem.users)), rng.uniform(0.0, 2.0 * np.pi, 5)
        items = np.column_stack([HALF * np.cos(angles), HALF * np.sin(angles), np.full(5, HALF)])
        choices.append(policy.recommend(user, items))
        policy.update(user, items[choices[-1]], float(rng.random() < 0.5))
    return choices


def test_few_users_are_served_from_types_too() -> None:
    """A cluster's statistics are one sum, in which nothing can fade."""
    assert all(isinstance(server.learner, Types) for server in started().servers.values())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("fclub-plus", {}), ("cdp-fclub-plus", {}), ("cdp-fclub-plus", {"share": False})],
)
def test_both_loops_are_equal(name: str, parameters: dict[str, Any]) -> None:
    """Without sharing users are served from types, else from the population while they are few."""
    fast, slow = (
        fclub.simulate(
            make_policy(name, types=4, half_life=HALF_LIFE, **parameters),
            make_environment("synthetic", users=30, clusters=3, servers=2, dim=4, items=5, drift=0.05),
            600,
            seed=5,
            fast=compiled,
        )
        for compiled in (True, False)
    )
    assert fast == slow


def test_users_are_served_from_what_is_left_and_all_of_it_is_kept() -> None:
    policy = started()
    play(policy, 200)
    for server in policy.servers.values():
        assert server.learner.people.serving is server.learner.people.recent
        assert np.array_equal(server.learner.people.recent.counts, server.counts)
        left = server.learner.people.recent.gram[:, -1, -1] / HALF**2
        expected = [n * mean_weight(int(n), keep_share(HALF_LIFE)) for n in server.counts]
        assert left == pytest.approx(expected)
        assert server.learner.users.gram[:, -1, -1] / HALF**2 == pytest.approx(server.counts)


def test_a_saved_federation_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    policy = started()
    play(policy, 200)
    policy.save(tmp_path / "saved.npz")
    restored = fclub.Policy.load(tmp_path / "saved.npz")
    assert play(policy, 100, seed=1) == play(restored, 100, seed=1)
    assert np.array_equal(policy.theta_, restored.theta_)


def live_server(half_life: float = HALF_LIFE) -> Any:
    family = make_family("fclub-plus", Shape(DIM, 100, HALF), {"types": 4, "half_life": half_life})
    link, rng = InProcessLink(decode), np.random.default_rng(0)
    place = Place("here", link.uplink(0), NoNoise(), None, rng)
    server = family.local_server(place, family.users(0), live=True)
    for _ in range(3):
        server.add_user()
    return server


def observed(server: Any, times: int) -> Items:
    rng = np.random.default_rng(1)
    for t in range(times):
        x = np.append(rng.standard_normal(DIM - 1) * 0.4, HALF)
        server.observe(t % 3, x, float(t % 2))
    return x


def test_a_live_server_has_types_from_its_first_user_on() -> None:
    server = live_server()
    assert isinstance(server.learner, Types)
    observed(server, 30)
    bound = server.bound(1)
    assert server.learner.theta()[1, :-1] == pytest.approx(bound.theta[:-1])
    assert "learner.recent.gram" in server.by_user


def test_a_reward_that_replaces_another_counts_like_an_average_observation() -> None:
    server = live_server()
    x = observed(server, 30)
    types = server.learner
    row, before = 29 % 3, (types.users.moment.copy(), types.people.recent.moment.copy())
    server.replace(row, x, 1.0, 0.0)
    weight = mean_weight(10, keep_share(HALF_LIFE))
    assert types.users.moment[row] - before[0][row] == pytest.approx(-x)
    assert types.people.recent.moment[row] - before[1][row] == pytest.approx(-weight * x)


def test_nothing_is_left_of_a_forgotten_user() -> None:
    server = live_server()
    observed(server, 30)
    server.forget(2)
    assert not server.learner.people.recent.gram[2].any()
    assert server.learner.people.recent.gram[1].any()


def test_what_was_kept_before_fading_counts_in_full_at_first() -> None:
    """A store made without it is opened with it, and the other way round."""
    plain, fading = live_server(0.0), live_server()
    plain.add_user()
    observed(plain, 30)
    fading.add_user()
    fading.restore(*plain.state())
    assert np.array_equal(fading.learner.people.recent.gram, plain.learner.users.gram)
    observed(fading, 30)
    plain.restore(*fading.state())
    assert np.array_equal(plain.learner.users.gram, fading.learner.users.gram)


@pytest.mark.parametrize(
    "guarantee", [{"unit": "event"}, {"level": "interactive"}], ids=lambda told: "-".join(told.values())
)
def test_other_guarantees_do_not_fade(guarantee: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match="half_life must be 0"):
        make_policy("cdp-fclub-plus", half_life=3.0, **guarantee)
