"""Registering a policy gives it these tests (environments: tests/environments/test_common.py)."""

import copy

import numpy as np
import pytest

import fclub
from fclub.checks import check_environment, check_family, check_policy
from fclub.environments.base import Environment, Outcome
from fclub.policies.registry import POLICIES, make_policy
from fclub.protocol.families import FAMILIES


@pytest.mark.parametrize("name", POLICIES)
def test_policy(name: str) -> None:
    check_policy(make_policy(name))


class Greedy(fclub.Policy):
    """Somebody's own policy: one ridge regression per user, mostly greedy."""

    defaults = {"ridge": 1.0, "explore": 0.1}  # noqa: RUF012 - as a user would write it

    def _start(self, problem, server_of, seed, seeded):
        ridge = self.get_params()["ridge"]
        self.gram = np.tile(ridge * np.eye(problem.dim), (problem.users, 1, 1))
        self.moment = np.zeros((problem.users, problem.dim))
        self.rng = np.random.default_rng(seed)
        self.last = 0.0

    def _recommend(self, user, items):
        if self.last < self.get_params()["explore"]:
            return int(np.argmin(items @ self.theta_[user]))
        return int(np.argmax(items @ self.theta_[user]))

    def _update(self, user, x, y):
        self.gram[user] += np.outer(x, x)
        self.moment[user] += y * x
        self.last = self.rng.random()

    @property
    def theta_(self):
        return np.linalg.solve(self.gram, self.moment[..., None])[..., 0]


class Corridor(Environment):
    """Somebody's own environment: users want what is near their own point."""

    name = "corridor"

    def __init__(self) -> None:
        self.problem = fclub.Problem(users=6, servers=2, dim=2)
        self.server_of = np.arange(6) % 2
        self.labels = np.arange(6) // 3

    def start(self, seed):
        self.rng = np.random.default_rng(seed)

    def visit(self):
        self.user = int(self.rng.integers(6))
        angles = self.rng.uniform(0, np.pi / 2, size=5)
        self.items = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        self.draw = self.rng.random()
        return self.user, self.items

    def feedback(self, index):
        means = self.items[:, self.labels[self.user]]
        return Outcome(float(self.draw < means[index]), float(means.max() - means[index]))


def test_a_policy_of_ones_own() -> None:
    check_policy(Greedy(), deterministic=True)
    assert Greedy(ridge=2.0).get_params() == {"ridge": 2.0, "explore": 0.1}
    assert Greedy().name == "greedy"


def test_an_environment_of_ones_own() -> None:
    check_environment(Corridor())
    trace = fclub.simulate(Greedy(), Corridor(), 300)
    assert (trace.policy, trace.environment) == ("greedy", "corridor")
    assert trace.regret[-1] < fclub.simulate(Greedy(explore=1.0), Corridor(), 300).regret[-1]


class Careless(Greedy):
    def recommend(self, user, items):
        return 0

    def update(self, user, x, reward):
        self._update(user, x, reward)


class Forgetful(Greedy):
    def restore(self, arrays, values):
        """Starts again instead."""


class Ordered(Greedy):
    def _recommend(self, user, items):
        return 0


class OutOfRange(Greedy):
    def _recommend(self, user, items):
        return len(items)


class Biased(Corridor):
    def visit(self):
        user, items = super().visit()
        return user, 2 * items


class Reacting(Corridor):
    def feedback(self, index):
        self.rng.random(index)
        return super().feedback(index)


@pytest.mark.parametrize("kind", [Careless, Forgetful, Ordered, OutOfRange])
def test_checks_have_teeth_for_policies(kind: type[Greedy]) -> None:
    with pytest.raises(AssertionError):
        check_policy(kind())


@pytest.mark.parametrize("kind", [Biased, Reacting])
def test_checks_have_teeth_for_environments(kind: type[Corridor]) -> None:
    with pytest.raises((AssertionError, fclub.errors.InvalidInput)):
        check_environment(kind())


def test_a_started_policy_is_not_touched() -> None:
    policy = make_policy("linucb")
    before = copy.deepcopy(vars(policy))
    check_policy(policy, rounds=5)
    assert vars(policy).keys() == before.keys()
    assert policy._problem is None


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str) -> None:
    check_family(FAMILIES[name](), rounds=60)
