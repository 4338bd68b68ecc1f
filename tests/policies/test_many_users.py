"""The goals for many users, at the sizes that a gate can afford; `benchmarks` has all."""

import pytest
from benchmarks.drift import regret
from benchmarks.many_users import EXACT, judge, play


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "seeds"), [("2,000 x 5", 2), ("2,000 x 20", 2), ("2,000 Zipf", 10), ("spread 0.3 x 20", 2)]
)
def test_sharing_types_reaches_its_goals(row: str, seeds: int) -> None:
    """Seeds that were not used for tuning; by Zipf's law it takes ten of them to tell."""
    traces = play(row, tuple(range(seeds)), lambda goal: goal.policy == EXACT, jobs=1, folder=None)
    outcomes = judge(row, traces)
    assert outcomes
    assert [outcome.line() for outcome in outcomes if not outcome.met] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("fclub-plus", 0.8), ("cdp-fclub-plus", 0.9)])
def test_fading_helps_where_tastes_change(name: str, most: float) -> None:
    """Types that a server learns at home have more to unlearn.

    `python benchmarks/drift.py` plays more users, and ten seeds.
    """
    size = 700, 400, 0.01
    kept, fading = (regret(name, half_life, *size, seed=0) for half_life in (0.0, 40.0))
    assert fading <= most * kept
