"""What every environment must do."""

from __future__ import annotations

import json

import numpy as np

from fclub.checks.policy import expect
from fclub.core.inputs import as_items
from fclub.environments.base import Environment


def check_environment(environment: Environment, *, visits: int = 100) -> None:
    """Run every check of an environment."""
    environment.expect_rounds(visits)
    check_description(environment)
    check_visits(environment, visits)
    check_same_world(environment, visits)


def check_description(environment: Environment) -> None:
    """The problem, the placement of users and their true clusters fit together."""
    environment.start(0)
    problem, users = environment.problem, environment.problem.users
    expect(bool(environment.name), "an environment needs a name")
    json.dumps(environment.get_params())
    expect(environment.server_of.shape == (users,), "server_of needs one server per user")
    expect(environment.labels.shape == (users,), "labels needs one cluster per user")
    expect(set(environment.server_of) <= set(range(problem.servers)), "server_of names unknown servers")


def check_visits(environment: Environment, visits: int) -> None:
    """Users exist, items are valid, rewards are in [0, 1], nothing beats the best item."""
    environment.start(1)
    for turn in range(visits):
        user, items = environment.visit()
        expect(0 <= user < environment.problem.users, f"user {user} does not exist")
        as_items(items, environment.problem.dim)
        if environment.problem.constant is not None:
            expect(np.allclose(items[:, -1], environment.problem.constant), "constant feature varies")
        outcome = environment.feedback(turn % len(items))
        expect(0.0 <= outcome.reward <= 1.0, f"reward {outcome.reward} is outside [0, 1]")
        expect(-1e-12 <= outcome.regret < np.inf, f"regret {outcome.regret} makes no sense")


def check_same_world(environment: Environment, visits: int) -> None:
    """One seed gives one sequence of users and items, whatever is chosen; another gives another."""
    sequences = [_visits(environment, seed, visits, last) for seed, last in ((1, 0), (1, 1), (2, 0))]
    expect(sequences[0] == sequences[1], "the visits depend on the choices")
    expect(sequences[0] != sequences[2], "another seed gave the same visits")


def _visits(environment: Environment, seed: int, visits: int, last: int) -> list[tuple[int, bytes]]:
    environment.start(seed)
    seen = []
    for _ in range(visits):
        user, items = environment.visit()
        environment.feedback(len(items) - 1 if last else 0)
        seen.append((int(user), np.asarray(items).tobytes()))
    return seen
