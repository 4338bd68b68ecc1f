"""When a claim holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.experiments.report.claims import (
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
from fclub.experiments.report.measured import Curve

ends = st.lists(st.floats(0, 1e6), min_size=3, max_size=3)


def curve(*last: float) -> Curve:
    values = np.array(last, dtype=np.float64)
    return Curve(np.array([1]), values.mean(keepdims=True), None, values[:, None])


@given(ends, ends)
def test_only_one_of_two_is_below(first: list[float], second: list[float]) -> None:
    forward, backward = below(curve(*first), curve(*second)), below(curve(*second), curve(*first))
    assert (forward is None) == (backward is None)
    assert forward is None or forward is not backward


def test_a_difference_that_seeds_do_not_settle_is_open() -> None:
    assert below(curve(1, 9), curve(9, 1.1)) is None
    assert below(curve(1, 2), curve(2, 3)) is True
    assert below(curve(5, 6), curve(4, 5)) is False


def test_one_seed_settles_nothing() -> None:
    assert below(curve(5), curve(4)) is None
    assert grows([curve(1), curve(2)]) == OPEN


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
    assert exponent(Curve(t, values, None, values[None])) == pytest.approx(power, rel=1e-6)


def test_growth_from_first_to_last_and_at_every_step() -> None:
    low, middle, high = curve(1, 1), curve(2, 2), curve(3, 3)
    assert grows([low, middle, high]) == HOLDS
    assert grows([low, high, middle]) == PARTLY
    assert grows([high, middle, low]) == FAILS
    assert grows([low, middle, curve(0, 2)]) == OPEN


def places(*verdicts: str) -> list[Claim]:
    return [Claim("f", f"place {k}", "x", str(k), verdict) for k, verdict in enumerate(verdicts)]


def test_a_claim_that_holds_here_and_fails_there_holds_in_part() -> None:
    (line,) = sum_up(places(HOLDS, FAILS))
    assert line.verdict == PARTLY
    assert line.places == "holds in “place 0”; does not hold in “place 1”"
    assert line.measured == "place 0: 0"
    assert sum_up(places(FAILS))[0].places == "place 0"


def test_many_places_are_counted() -> None:
    (line,) = sum_up(places(*[HOLDS] * 5, FAILS))
    assert line.places == "holds in 5 places; does not hold in “place 5”"
    assert sum_up(places(HOLDS, HOLDS))[0].places == "everywhere (2 places)"


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        ((HOLDS, f"{HOLDS}, vacuous"), HOLDS),
        ((HOLDS, OPEN), OPEN),
        ((HOLDS, PARTLY), PARTLY),
        ((OPEN, FAILS), FAILS),
        ((PARTLY, FAILS), PARTLY),
    ],
)
def test_what_holds_nowhere_does_not_hold_in_part(verdicts: tuple[str, ...], together: str) -> None:
    for order in (verdicts, verdicts[::-1]):
        assert sum_up(places(*order))[0].verdict == together
