"""Users of two kinds, who like opposite items, and what holds for all servers that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.parts import federated

import fclub
from fclub.core.types import Floats
from fclub.environments.registry import make_environment
from fclub.policies.registry import make_policy

DIM, HALF = 3, float(np.sqrt(0.5))


def offer(rng: np.random.Generator, count: int = 5) -> Floats:
    angles = rng.uniform(0.0, 2.0 * np.pi, count)
    return np.column_stack([HALF * np.cos(angles), HALF * np.sin(angles), np.full(count, HALF)])


def answer(rng: np.random.Generator, user: int, x: Floats) -> float:
    return float(rng.random() < x @ [0.7 * (1 if user % 2 else -1), 0.0, HALF])


def play(policy: fclub.Policy, rounds: int, seed: int = 0, count: int = 5) -> list[int]:
    """Users in any order, each of whom is offered so many items; the choices."""
    rng, choices = np.random.default_rng(seed), []
    for _ in range(rounds):
        user, items = int(rng.integers(policy.problem.users)), offer(rng, count)
        choices.append(policy.recommend(user, items))
        x = items[choices[-1]]
        policy.update(user, x, answer(rng, user, x))
    return choices


def check_saved(policy: fclub.Policy, path: Path, rounds: int = 300, count: int = 5) -> None:
    """A policy that is saved and loaded goes on as if nothing had happened."""
    policy.save(path)
    restored = fclub.Policy.load(path)
    assert play(policy, rounds, 1, count) == play(restored, rounds, 1, count)
    assert np.array_equal(policy.theta_, restored.theta_)
    assert np.array_equal(policy.labels_, restored.labels_)
    ledgers = [federated(one).federation.ledger for one in (policy, restored)]
    assert [ledger and ledger.events for ledger in ledgers] == [ledgers[0] and ledgers[0].events] * 2


def same_in_both_loops(name: str, rounds: int, users: int = 60, **parameters: Any) -> fclub.Trace:
    """What the compiled loop gives, which is what the readable one gives."""
    traces = []
    for compiled in (True, False):
        environment = make_environment("synthetic", users=users, clusters=3, servers=5, dim=4, items=5)
        policy = make_policy(name, **parameters)
        traces.append(
            fclub.simulate(policy, environment, rounds, seed=5, fast=compiled, record_choices=True)
        )
    fast, slow = traces
    assert np.array_equal(fast.choices, slow.choices)
    assert np.array_equal(fast.regret, slow.regret)
    assert np.array_equal(fast.labels, slow.labels)
    assert all(
        np.array_equal(fast.communications[k], slow.communications[k]) for k in fast.communications
    )
    return fast
