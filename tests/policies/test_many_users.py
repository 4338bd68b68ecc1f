"""The goals for many users, at the sizes that a gate can afford; `benchmarks` has all."""

import pytest
from benchmarks.drift import regret
from benchmarks.many_users import EXACT, judge, play

LATE = pytest.mark.xfail(strict=True, reason="missed: 0.754 ± 0.044 over eight seeds, not 0.75")


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", ["2,000 x 5", "2,000 x 20", pytest.param("2,000 Zipf", marks=LATE), "spread 0.3 x 20"]
)
def test_sharing_types_reaches_its_goals(row: str) -> None:
    """Seeds that were not used for tuning; the means of a recorded run leave room around these."""
    traces = play(row, (0, 1), lambda goal: goal.policy == EXACT, jobs=1, folder=None)
    outcomes = judge(row, traces)
    assert outcomes
    assert [outcome.line() for outcome in outcomes if not outcome.met] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
def test_fading_helps_where_tastes_change(name: str) -> None:
    """`python benchmarks/drift.py` plays more users, and ten seeds."""
    size = 700, 400, 0.01
    kept, fading = (regret(name, half_life, *size, seed=0) for half_life in (0.0, 40.0))
    assert fading <= 0.8 * kept
