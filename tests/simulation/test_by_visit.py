"""The regret of users' first, second, … visits, counted again from the visits themselves."""

import numpy as np
import pytest

import fclub
from fclub.simulation.loop import MOST


@pytest.mark.parametrize("rounds", [40, 2000])
def test_means_are_those_of_the_visits(rounds: int) -> None:
    environment = fclub.make_environment("synthetic", users=20, servers=4)
    trace = fclub.simulate("linucb", environment, rounds, seed=4, record_choices=True)
    environment.start(np.random.SeedSequence(4).spawn(2)[0])
    seen: dict[int, int] = {}
    regret: dict[int, list[float]] = {}
    for choice in trace.choices:
        user, _ = environment.visit()
        seen[user] = seen.get(user, 0) + 1
        regret.setdefault(seen[user], []).append(environment.feedback(int(choice)).regret)
    expected = [np.mean(regret[k]) for k in sorted(regret) if k <= MOST]
    np.testing.assert_allclose(trace.by_visit, expected)
    assert len(trace.newcomers_by_visit) == 0
