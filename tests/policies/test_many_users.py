"""The goals for many users, at the sizes that a gate can afford; `benchmarks/many_users.py` has all."""

import pytest
from benchmarks.many_users import EXACT, judge, play


@pytest.mark.slow
@pytest.mark.parametrize("row", ["2,000 x 5", "2,000 x 20", "2,000 Zipf", "spread 0.3 x 20"])
def test_sharing_types_reaches_its_goals(row: str) -> None:
    """Seeds that were not used for tuning; the means of a recorded run leave room around these."""
    traces = play(row, (0, 1), lambda goal: goal.policy == EXACT, jobs=1, folder=None)
    outcomes = judge(row, traces)
    assert outcomes
    assert [outcome.line() for outcome in outcomes if not outcome.met] == []
