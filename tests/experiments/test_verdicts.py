"""When a claim holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.experiments.measure import Curve
from fclub.experiments.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    PARTLY,
    Claim,
    below,
    exponent,
    grows,
    sum_up,
    together,
)

ends = st.lists(st.floats(0, 1e6), min_size=3, max_size=3)


def curve(*last: float) -> Curve:
    values = np.array(last, dtype=np.float64)
    return Curve(np.array([1]), values.mean(keepdims=True), None, values)


@given(ends, ends)
def test_only_one_of_two_is_below(first: list[float], second: list[float]) -> None:
    forward, backward = below(curve(*first), curve(*second)), below(curve(*second), curve(*first))
    assert (forward is None) == (backward is None)
    assert forward is None or forward is not backward


def test_a_difference_that_seeds_do_not_settle_is_open() -> None:
    assert below(curve(1, 9), curve(9, 1.1)) is None
    assert below(curve(1, 2), curve(2, 3)) is True
    assert below(curve(5), curve(4)) is False


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([True, True], HOLDS),
        ([True, None], OPEN),
        ([True, False], PARTLY),
        ([False, None], FAILS),
        ([False, False], FAILS),
    ],
)
def test_verdict_on_several_comparisons(answers: list[bool | None], verdict: str) -> None:
    assert together(answers) == verdict


@given(st.floats(0.1, 1.5))
def test_exponent_of_a_power_is_its_exponent(power: float) -> None:
    t = np.arange(1, 1001)
    values = t.astype(np.float64) ** power
    assert exponent(Curve(t, values, None, values[-1:])) == pytest.approx(power, rel=1e-6)


def test_growth_from_first_to_last_and_at_every_step() -> None:
    low, middle, high = curve(1, 1), curve(2, 2), curve(3, 3)
    assert grows([low, middle, high]) == HOLDS
    assert grows([low, high, middle]) == PARTLY
    assert grows([high, middle, low]) == FAILS
    assert grows([low, middle, curve(0, 2)]) == OPEN


def test_a_claim_that_holds_here_and_fails_there_holds_in_part() -> None:
    found = [Claim("f", "a", "x", "1", HOLDS), Claim("f", "b", "x", "2", FAILS)]
    (line,) = sum_up(found)
    assert line.verdict == PARTLY
    assert line.places == "2 places: holds in 1, does not hold in 1"
    assert sum_up(found[1:])[0].verdict == FAILS
