"""Where a server's users become enough: to learn what all have in common, and to learn types."""

from __future__ import annotations

from typing import Any

import numpy as np

import fclub
from fclub.config import Problem
from fclub.policies.registry import make_policy
from fclub.protocol.plus.detection import CROWD
from fclub.protocol.plus.local_server import PlusLocal
from fclub.protocol.plus.user_local import UserLocal

DIM, HALF = 3, float(np.sqrt(0.5))


def started(sizes: list[int], **parameters: Any) -> fclub.Policy:
    policy = make_policy("cdp-fclub-plus", **parameters)
    server_of = np.repeat(np.arange(len(sizes)), sizes)
    policy.start(Problem(len(server_of), len(sizes), DIM, HALF), server_of, seed=1)
    return policy


def test_types_begin_with_the_sixty_fifth_user() -> None:
    """There they were measured to be as good as the sampler, which costs more with every user."""
    policy = started([64, 65])
    assert [type(server) for server in policy.servers.values()] == [PlusLocal, UserLocal]


def test_fewer_than_a_crowd_are_taken_for_what_was_expected_of_them() -> None:
    """Alone, 23 users teach a server nothing of all users; 24 do."""
    few = int(CROWD) - 1
    policy = started([few, few + 1], share=False, sweeps=4)
    expected = [server.population.mean.copy() for server in policy.servers.values()]
    rng, x = np.random.default_rng(0), np.array([0.5, 0.5, HALF])
    for user in range(2 * few + 1):
        policy.update(user, x, float(rng.random() < 0.9))
    for server in policy.servers.values():
        server.detect()
    found = [server.population.mean for server in policy.servers.values()]
    assert np.array_equal(found[0], expected[0])
    assert not np.array_equal(found[1], expected[1])
