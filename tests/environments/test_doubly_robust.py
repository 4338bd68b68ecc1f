"""The doubly robust estimate, exactly: every log of a tiny world with its probability."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import comb, prod

import numpy as np
import pytest

import fclub
from fclub.core.types import Flags, Matrix, Vector
from fclub.environments.logs import Log
from fclub.environments.replay import doubly_robust, evaluate_replay, walk
from fclub.environments.reward_model import OWN, SHARED, RewardModel

ROUNDS = 3
FEATURES = np.array([[0.8, 0.1], [0.2, 0.9], [0.5, 0.5]])
OFFERS = [np.array([0, 1]), np.array([1, 2])]
VISITORS = [(0, 0, 0.6), (1, 1, 0.4)]
"""User, offer, and how likely they come."""
LIKED = np.array([[0.9, 0.3, 0.5], [0.2, 0.7, 0.4]])
"""How likely a user rewards an item."""
SHARE = 0.4
"""The log shows the second item of an offer with probability 1 − SHARE/2, the first with SHARE/2."""
LEAST = SHARE / 2

Outcome = tuple[float, int, int, int, float, float, bool]
"""Of a round: probability, user, offer, item, propensity, reward, whether it is accepted."""


class Learner:
    """Shows what has earned most so far, the first of equals."""

    def start(self, problem: fclub.Problem, server_of: object, seed: object = None) -> None:
        self.earned: dict[float, float] = {}

    def recommend(self, user: int, items: Matrix) -> int:
        return int(np.argmax([self.earned.get(float(x[0]), 0.4) for x in items]))

    def update(self, user: int, x: Vector, reward: float) -> None:
        known = self.earned.get(float(x[0]), 0.4)
        self.earned[float(x[0])] = (known + reward) / 2


def started() -> Learner:
    learner = Learner()
    learner.start(fclub.Problem(2, 1, 2), [0, 0])
    return learner


def value(policy: Learner) -> float:
    """V(π): the expected reward of the next visitor."""
    total = 0.0
    for user, offer, chance in VISITORS:
        rows = OFFERS[offer]
        total += chance * LIKED[user, rows[policy.recommend(user, FEATURES[rows])]]
    return total


def chance_of(reward: float, user: int, item: int) -> float:
    return float(LIKED[user, item] if reward else 1.0 - LIKED[user, item])


def rounds() -> Iterator[Outcome]:
    """Every outcome of one round."""
    for (user, offer, comes), place, reward, accepted in product(
        VISITORS, (0, 1), (0.0, 1.0), (False, True)
    ):
        shown, item = (LEAST, 1.0 - LEAST)[place], int(OFFERS[offer][place])
        kept = LEAST / shown if accepted else 1.0 - LEAST / shown
        chance = comes * shown * chance_of(reward, user, item) * kept
        if chance > 0.0:
            yield chance, user, offer, item, shown, reward, accepted


def test_it_is_unbiased_for_a_policy_that_learns_and_what_that_means_live() -> None:
    """E[mean D_t] = E[mean V(π_t)] = Σ_t Σ_k P(k of t−1 rounds are kept) · v_k / T."""
    found = truth = total = 0.0
    for history in product(list(rounds()), repeat=ROUNDS):
        log, flags = log_of(history)
        chance = prod(one[0] for one in history)
        total += chance
        found += chance * doubly_robust(log, walk(started(), log, flags)).mean()
        for t in range(ROUNDS):
            policy = started()
            if t:
                walk(policy, *log_of(history[:t]))
            truth += chance * value(policy) / ROUNDS
    assert total == pytest.approx(1.0, abs=1e-12)
    assert found == pytest.approx(truth, abs=1e-12)
    live = [live_value(k) for k in range(ROUNDS)]
    expected = sum(
        comb(t, k) * LEAST**k * (1.0 - LEAST) ** (t - k) * live[k] / ROUNDS
        for t in range(ROUNDS)
        for k in range(t + 1)
    )
    assert truth == pytest.approx(expected, abs=1e-12)
    assert abs(live[-1] - live[0]) > 0.02, "the policy learns"


def log_of(history: tuple[Outcome, ...]) -> tuple[Log, Flags]:
    """The log of these outcomes, and which of its rounds are accepted."""
    _, users, offers, shown, propensity, rewards, accepted = zip(*history, strict=True)
    log = Log(
        users=np.array(users),
        shown=np.array(shown),
        rewards=np.array(rewards),
        propensity=np.array(propensity),
        features=FEATURES,
        offers=OFFERS,
        offer=np.array(offers),
    )
    return log, np.array(accepted)


def live_value(learned: int) -> float:
    """The expected reward of a visitor after this number of rounds live, over all their outcomes."""
    total = 0.0
    for history in product(product(VISITORS, (0.0, 1.0)), repeat=learned):
        policy, chance = started(), 1.0
        for (user, offer, comes), reward in history:
            item = int(OFFERS[offer][policy.recommend(user, FEATURES[OFFERS[offer]])])
            chance *= comes * chance_of(reward, user, item)
            policy.update(user, FEATURES[item], reward)
        total += chance * value(policy)
    return total


def test_the_model_of_rewards_is_two_ridge_regressions() -> None:
    rng = np.random.default_rng(0)
    users, items, rewards = rng.integers(3, size=60), rng.random((60, 4)) / 2, rng.random(60)
    model = RewardModel(3, 4)
    for user, x, reward in zip(users.tolist(), items, rewards.tolist(), strict=True):
        model.learn(user, x, reward)
    shared = np.linalg.solve(items.T @ items + SHARED * np.eye(4), items.T @ rewards)
    for user in range(3):
        own, earned = items[users == user], rewards[users == user]
        found = np.linalg.solve(own.T @ own + OWN * np.eye(4), own.T @ earned + OWN * shared)
        np.testing.assert_allclose(model.estimate(user), found, rtol=1e-10)


class Own(Learner):
    """Shows every user its own item."""

    def recommend(self, user: int, items: Matrix) -> int:
        return user


def test_a_good_model_makes_it_narrower_than_replay() -> None:
    """Rewards that the features explain: what does not fit is predicted."""
    rng = np.random.default_rng(1)
    features = np.linspace([0.1, 0.9], [0.9, 0.1], 6) * 0.8
    users, shown = rng.integers(6, size=4000), rng.integers(6, size=4000)
    mean = features @ np.array([1.2, 0.1])
    rewards = np.clip(mean[shown] + 0.02 * rng.standard_normal(4000), 0.0, 1.0)
    result = evaluate_replay(Own(), Log(users, shown, rewards, np.full(4000, 1 / 6), features))
    found, by_replay = result.doubly_robust, result.replay
    assert found.high - found.low < 0.7 * (by_replay.high - by_replay.low)
    assert found.low < mean.mean() < found.high


def test_without_a_fitting_round_nothing_is_known() -> None:
    log = Log(np.array([0]), np.array([1]), np.array([1.0]), np.array([0.5]), FEATURES)
    estimate = evaluate_replay(Learner(), log).doubly_robust
    assert np.isnan(estimate.value)
    assert (estimate.low, estimate.high) == (0.0, 1.0)
    with pytest.raises(fclub.errors.InvalidSetting, match="least"):
        evaluate_replay(Learner(), log, least=0.9)
