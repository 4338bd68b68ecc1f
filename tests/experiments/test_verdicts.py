"""When a claim holds."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fclub.experiments.report.claims import (
    FAILS,
    HOLDS,
    OPEN,
    PARTLY,
    Claim,
    PairedTest,
    above_zero,
    below,
    exponent,
    exponents,
    grows,
    holm,
    settle,
    sum_up,
    to_row,
    together,
)
from fclub.experiments.report.measured import Curve

ends = st.lists(st.floats(0, 1e6), min_size=5, max_size=5)


def curve(*last: float) -> Curve:
    values = np.array(last, dtype=np.float64)
    return Curve(np.array([1]), values.mean(keepdims=True), None, values[:, None])


@given(ends, ends)
def test_only_one_of_two_is_below(first: list[float], second: list[float]) -> None:
    forward = below(curve(*first), curve(*second))
    backward = below(curve(*second), curve(*first))
    assert forward.p == pytest.approx(backward.p)
    assert forward.answer is None or forward.answer is not backward.answer


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=12))
def test_p_values_are_those_of_a_paired_t_test(differences: list[float]) -> None:
    values = np.array(differences)
    assume(values.std() > 1e-6)
    expected = stats.ttest_1samp(values, 0.0)
    found = above_zero(values)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.said == (values.mean() > 0)


def test_equal_differences_are_certain_and_none_is_open() -> None:
    assert above_zero(np.full(5, 2.0)).answer is True
    assert above_zero(np.zeros(5)).answer is None
    assert above_zero(np.full(5, np.nan)).answer is None


def test_a_difference_that_seeds_do_not_settle_is_open() -> None:
    assert below(curve(1, 9, 1, 9, 1), curve(9, 1.1, 9, 1, 2)).answer is None
    assert below(curve(1, 2, 3, 4, 5), curve(2, 3, 4, 5, 6.1)).answer is True
    assert below(curve(5, 6, 7, 8, 9.1), curve(4, 5, 6, 7, 8)).answer is False
    assert below(curve(4, 4, 4, 4, 4.1), curve(2, 2, 2, 2, 2), 3.0).answer is True


def test_four_seeds_settle_nothing() -> None:
    assert below(curve(1, 1, 1, 1), curve(4, 4, 4, 4)).answer is None


@given(st.lists(st.floats(0, 1), max_size=8))
def test_adjusted_p_values_by_the_definition_of_holm(p: list[float]) -> None:
    adjusted = holm(p)
    for k, value in enumerate(adjusted):
        # The largest (number of p-values at least as large) * p over all that are not larger.
        smaller = sorted(p)[: sorted(p).index(p[k]) + 1]
        steps = [(len(p) - i) * q for i, q in enumerate(smaller)]
        assert value >= min(1.0, max(steps)) - 1e-12
        assert value >= p[k]
    assert sorted(adjusted) == [adjusted[k] for k in np.argsort(p, kind="stable")]


def test_holm_on_a_printed_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_many_comparisons_need_more_evidence() -> None:
    claim = Claim("f", "here", "x", "1", (PairedTest(True, 0.03),))
    assert claim.verdict == HOLDS
    assert [found.verdict for found in settle([claim])] == [HOLDS]
    assert {found.verdict for found in settle([claim] * 2)} == {OPEN}
    assert to_row(settle([claim])[0])["p"] == [0.03]


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


def test_exponents_by_seed_know_seeds_without_loss() -> None:
    t = np.arange(1, 101)
    rows = np.array([t.astype(np.float64), np.zeros(100)])
    assert exponents(Curve(t, rows.mean(axis=0), None, rows)) == pytest.approx(
        [1.0, np.nan], nan_ok=True
    )


def verdict_on_growth(*curves: Curve) -> str:
    return grows("f", "here", "x", "1", curves).verdict


def test_growth_from_first_to_last_and_at_every_step() -> None:
    low, middle, high = (curve(*[value] * 5) for value in (1, 2, 3))
    assert verdict_on_growth(low, middle, high) == HOLDS
    assert verdict_on_growth(low, high, middle) == PARTLY
    assert verdict_on_growth(high, middle, low) == FAILS
    assert verdict_on_growth(low, middle, curve(0, 2, 0, 2, 1)) == OPEN


def places(*verdicts: str) -> list[Claim]:
    return [
        Claim("f", f"place {k}", "x", str(k), ANSWERS[name], remark=remark)
        for k, (name, _, remark) in enumerate(verdict.partition(", ") for verdict in verdicts)
    ]


ANSWERS: dict[str, tuple[bool | None, ...]] = {
    HOLDS: (True,),
    FAILS: (False,),
    OPEN: (None,),
    PARTLY: (True, False),
}


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
