"""What makes a synthetic world harder: each parameter does what it says, alone and together."""

from typing import Any

import numpy as np
import pytest

import fclub
from fclub.checks import check_environment
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidSetting

ALL: dict[str, Any] = {
    "change": "drift",
    "corrupted": 0.2,
    "noise": 0.1,
    "misfit": 0.1,
    "delay": 7,
    "dropout": 0.5,
}


def world(**parameters: Any) -> Synthetic:
    sizes: dict[str, Any] = {"users": 24, "clusters": 4, "servers": 4, "dim": 4, "items": 3}
    return Synthetic(**sizes | {"placement": "spread"} | parameters)


def played(environment: Synthetic, rounds: int = 400) -> list[tuple[int, np.ndarray, float, float]]:
    """User, items, reward and regret of the first item."""
    environment.expect_rounds(rounds)
    environment.start(3)
    visits = []
    for _ in range(rounds):
        user, items = environment.visit()
        outcome = environment.feedback(0)
        visits.append((user, items, outcome.reward, outcome.regret))
    return visits


@pytest.mark.parametrize(("key", "value"), ALL.items())
def test_one_alone_leaves_visitors_and_items_as_they_were(key: str, value: Any) -> None:
    plain, harder = played(world()), played(world(**{key: value}))
    same = [a[0] == b[0] for a, b in zip(plain, harder, strict=True)]
    assert all(same[:200])
    assert key == "dropout" or all(same[200:])
    for (_, one, *_), (_, two, *_) in zip(plain, harder, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("parameters", [{key: value} for key, value in ALL.items()] + [ALL])
def test_they_conform_and_both_loops_play_them_alike(parameters: dict[str, Any]) -> None:
    check_environment(world(**parameters))
    for policy in ("linucb", "fclub-dc", "fclub-plus"):
        fast, slow = (
            fclub.simulate(policy, world(**parameters), 300, fast=fast, record_choices=True)
            for fast in (None, False)
        )
        assert fast == slow
        np.testing.assert_array_equal(fast.choices, slow.choices)


@pytest.mark.parametrize("change", ["drift", "split", "merge"])
def test_tastes_change_halfway_and_only_then(change: str) -> None:
    environment = world(change=change)
    environment.expect_rounds(100)
    environment.start(1)
    before = environment.theta.copy()
    for t in range(100):
        environment.visit()
        assert np.array_equal(environment.theta, before) == (t < 50)
        environment.feedback(0)
    moved = (environment.theta != before).any(axis=1)
    labels, after = environment.labels, len(np.unique(environment.theta, axis=0))
    if change == "drift":
        assert moved.all()
        assert after == 4
    if change == "split":
        assert np.bincount(labels, moved).tolist() == [3, 3, 3, 3]
        assert after == 8
    if change == "merge":
        np.testing.assert_array_equal(moved, labels % 2 == 1)
        assert after == 2
    assert not environment.knows_clusters


@pytest.mark.parametrize(("corruption", "sign"), [("random", 0.0), ("inverted", -1.0)])
def test_corrupted_users_answer_by_a_coin_or_the_opposite(corruption: str, sign: float) -> None:
    environment = world(corrupted=0.25, corruption=corruption, noise=0.0)
    visits = played(environment)
    wrong = set()
    for user, items, reward, regret in visits:
        expected = items @ environment.theta[user]
        assert regret == pytest.approx(expected.max() - expected[0])
        if reward != pytest.approx(expected[0]):
            wrong.add(user)
            assert reward - 0.5 == pytest.approx(sign * (expected[0] - 0.5))
    assert len(wrong) == 6


def test_gaussian_rewards_have_the_mean_and_the_deviation_that_was_asked_for() -> None:
    environment = world(noise=0.5)
    rest = [
        reward - items[0] @ environment.theta[user]
        for user, items, reward, _ in played(environment, 4000)
    ]
    assert abs(np.mean(rest)) < 4 * 0.5 / np.sqrt(4000)
    assert np.std(rest) == pytest.approx(0.5, rel=0.05)
    assert environment.problem.reward == "unbounded"


def test_a_misfit_is_bounded_reached_and_part_of_the_regret() -> None:
    environment = world(misfit=0.2, noise=0.0)
    assert environment.misfit == 0.2
    rest = []
    for user, items, reward, regret in played(environment):
        expected = items @ environment.theta[user]
        wave = np.cos(3 * np.pi * items @ environment.world.answers.direction)
        real = np.clip(expected + 0.2 * wave, 0.0, 1.0)
        assert reward == pytest.approx(real[0])
        assert regret == pytest.approx(real.max() - real[0])
        rest.append(reward - expected[0])
    assert 0.19 < np.abs(rest).max() <= 0.2 + 1e-12
    assert environment.vectors is None
    with pytest.raises(InvalidSetting, match="vectors"):
        fclub.simulate("oracle-types", environment, 10)


def test_a_late_reward_is_learned_from_after_as_many_visits() -> None:
    class Listener(fclub.Policy):
        def _start(self) -> None:
            self.heard: list[tuple[int, int]] = []
            self.asked = 0

        def _recommend(self, user: int, items: Any) -> int:
            self.asked += 1
            return 0

        def _update(self, user: int, x: Any, y: float) -> None:
            self.heard.append((self.asked, user))

        @property
        def theta_(self) -> np.ndarray:
            return np.zeros((24, 4))

    environment, policy = world(delay=5), Listener()
    fclub.simulate(policy, environment, 60)
    assert [asked for asked, _ in policy.heard] == list(range(6, 61))
    assert policy.observations == 55
    environment.start(np.random.SeedSequence(0).spawn(2)[0])
    users = []
    for _ in range(60):
        users.append(environment.visit()[0])
        environment.feedback(0)
    assert [user for _, user in policy.heard] == users[:55]


def test_servers_that_drop_out_have_no_visits_in_the_second_half() -> None:
    environment = world(dropout=0.5, newcomers=0.25)
    users = [user for user, *_ in played(environment, 4000)]
    first, second = set(users[:2000]), set(users[2000:])
    gone = {int(s) for s in environment.server_of} - {int(environment.server_of[u]) for u in second}
    assert len(gone) == 2
    staying = [u for u in range(24) if int(environment.server_of[u]) not in gone]
    assert second == set(staying)
    assert {u for u in range(24) if environment.is_newcomer[u]} == set(staying) - first


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"dropout": 0.9}, "leave a server"),
        ({"change": "flood"}, "change"),
        ({"corrupted": 1.0}, "corrupted"),
        ({"misfit": 0.7}, "misfit"),
        ({"delay": -1}, "delay"),
        ({"noise": -0.1}, "noise"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidSetting, match=word):
        world(**wrong)


def test_worlds_that_change_halfway_must_know_when_that_is() -> None:
    for parameters in ({"change": "split"}, {"dropout": 0.5}):
        with pytest.raises(InvalidSetting, match="expect_rounds"):
            world(**parameters).start(0)
