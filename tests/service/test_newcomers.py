"""A user who is named for the first time is served at once, and soon by those it is like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fclub.core.agreement import adjusted_rand_index
from fclub.environments.synthetic import Synthetic

from .federation import Pump, model_of, name_of, play

pytestmark = pytest.mark.slow

SETTLED, VISITS = 12, 60
"""Users there from the start, and visits of a newcomer until it has to be understood."""


def world(seed: int) -> Synthetic:
    environment = Synthetic(users=20, clusters=2, servers=2, dim=4, items=6, placement="spread")
    environment.start(seed)
    return environment


def regrets(pump: Pump, environment: Synthetic, users: set[int], rounds: int) -> dict[int, list[float]]:
    """Visits of these users only; what each of them lost by every visit."""
    lost: dict[int, list[float]] = {user: [] for user in users}
    while min(map(len, lost.values())) < rounds:
        user, items = environment.visit()
        if user not in users or len(lost[user]) >= rounds:
            continue
        node = pump.locals[f"s{environment.server_of[user]}"]
        shown = node.recommend(name_of(user), items, [str(k) for k in range(len(items))])
        outcome = environment.feedback(shown.index)
        pump.run()
        node.feedback(shown.id, outcome.reward)
        pump.run()
        lost[user].append(outcome.regret)
    return lost


@pytest.mark.parametrize("name", ["fclub-dc", "fclub-plus", "cdp-fclub-plus"])
def test_newcomers_profit_from_those_who_are_there(tmp_path: Path, name: str) -> None:
    """Their first visits cost less than the first visits of those who came to an empty house."""
    environment = world(2)
    pump = Pump(tmp_path, model_of(environment, name), 2)
    first = set(range(SETTLED))
    pioneers = regrets(pump, environment, first, 250)
    before = {node.name: len(node.rows) for node in pump.locals.values()}
    assert sum(before.values()) == SETTLED
    newcomers = regrets(pump, environment, set(range(SETTLED, 20)), VISITS)
    assert sum(len(node.rows) for node in pump.locals.values()) == 20
    early = np.mean([lost[:VISITS] for lost in pioneers.values()])
    assert np.mean(list(newcomers.values())) < 0.8 * early
    pump.close()


@pytest.mark.parametrize("name", ["fclub-dc", "fclub-plus"])
def test_newcomers_are_put_where_they_belong(tmp_path: Path, name: str) -> None:
    """After some visits the clusters of all users together, old and new, are the true ones."""
    environment = world(3)
    pump = Pump(tmp_path, model_of(environment, name), 2)
    regrets(pump, environment, set(range(SETTLED)), 300)
    play(pump, environment, 6000)
    found = np.zeros(20, dtype=np.int64)
    for user in range(20):
        node = pump.locals[f"s{environment.server_of[user]}"]
        cluster = int(node.server.cluster_of[node.rows[name_of(user)]])
        group = node.server.overview()[cluster].group
        assert group is not None
        found[user] = group
    assert adjusted_rand_index(found, environment.labels) == 1.0
    pump.close()
