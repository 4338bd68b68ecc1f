"""A user who is named for the first time is served at once, and soon by those it is like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fclub.environments.synthetic import Synthetic

from .federation import Pump, model_of, name_of, play

pytestmark = pytest.mark.slow

USERS, VISITS = 20, 60
PIONEERS = {user for user in range(USERS) if user % 5 < 3}
"""Some users of each cluster are there from the start; the others come later, each for a while."""


def world(seed: int) -> Synthetic:
    environment = Synthetic(users=USERS, clusters=2, servers=2, dim=4, items=6, placement="spread")
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
        node.rewards.feedback(shown.id, outcome.reward)
        pump.run()
        lost[user].append(outcome.regret)
    return lost


@pytest.mark.parametrize(
    ("name", "given"), [("fclub-dc", {}), ("fclub-plus", {}), ("cdp-fclub-plus", {"unit": "event"})]
)
def test_newcomers_profit_from_those_who_are_there(
    tmp_path: Path, name: str, given: dict[str, str]
) -> None:
    """Their first visits cost less than the first visits of those who came to an empty house."""
    environment = world(2)
    pump = Pump(tmp_path, model_of(environment, name, **given), 2)
    pioneers = regrets(pump, environment, PIONEERS, 250)
    assert sum(len(node.users.rows) for node in pump.locals.values()) == len(PIONEERS)
    newcomers = regrets(pump, environment, set(range(USERS)) - PIONEERS, VISITS)
    assert sum(len(node.users.rows) for node in pump.locals.values()) == USERS
    early = np.mean([lost[:VISITS] for lost in pioneers.values()])
    assert np.mean(list(newcomers.values())) < 0.8 * early
    pump.close()


@pytest.mark.parametrize(
    ("name", "parameters"), [("fclub-dc", {"deletion": 0.7, "merging": 0.7}), ("fclub-plus", {})]
)
def test_newcomers_are_put_where_they_belong(
    tmp_path: Path, name: str, parameters: dict[str, float]
) -> None:
    """After some visits the clusters of all users together, old and new, are the true ones."""
    environment = world(3)
    pump = Pump(tmp_path, model_of(environment, name, **parameters), 2)
    regrets(pump, environment, PIONEERS, 100)
    play(pump, environment, 4000)
    found = np.zeros(USERS, dtype=np.int64)
    for user in range(USERS):
        node = pump.locals[f"s{environment.server_of[user]}"]
        cluster = int(node.server.cluster_of_user[node.users.rows[name_of(user)]])
        group = node.server.overview()[cluster].group
        assert group is not None
        found[user] = group
    for group in set(found.tolist()):
        members = set(np.flatnonzero(found == group).tolist())
        assert len(set(environment.labels[list(members)].tolist())) == 1, "with its own kind"
        assert members & PIONEERS, "and with those who were there"
    pump.close()
