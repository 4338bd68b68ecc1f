"""The lattice: what is rounded to it, and that sums on it are exact at any size and in any order."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.lattice import GRID, LIMIT, MOST_OBSERVATIONS, STEP, is_whole, on_grid, snap, whole
from fclub.core.statistics import Packed, observe
from fclub.errors import PrivacyError


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=6), st.sampled_from([0.0, 0.3, 0.5**0.5]))
def test_observations_are_rounded_to_the_nearest_multiple(values: list[float], constant: float) -> None:
    x = np.array(values)
    rounded = snap(x, constant)
    assert np.array_equal(rounded / GRID, np.rint(rounded / GRID))
    free = slice(None) if constant == 0.0 else slice(None, -1)
    assert np.all(np.abs(rounded - x)[free] <= GRID / 2.0)
    if constant > 0.0:
        assert rounded[-1] == on_grid(constant), "whatever came there"
    assert is_whole(np.outer(rounded, rounded))


@given(st.integers(0, 2**32), st.integers(1, 2**20))
def test_sums_are_exact_whatever_was_there_before(seed: int, before: int) -> None:
    """Many observations in doubles against fractions, beginning near the limit."""
    rng = np.random.default_rng(seed)
    packed = Packed.zeros(1, 3)
    start = MOST_OBSERVATIONS - before * STEP
    packed.gram[0] = start
    exact = [[Fraction(start)] * 3 for _ in range(3)]
    for _ in range(40):
        v = rng.standard_normal(3)
        x, y = snap(v / np.linalg.norm(v), 0.0), on_grid(float(rng.random()))
        observe(packed, 0, x, y)
        for i in range(3):
            for j in range(3):
                exact[i][j] += Fraction(float(x[i])) * Fraction(float(x[j]))
    for i in range(3):
        for j in range(3):
            assert Fraction(float(packed.gram[0, i, j])) == exact[i][j]
    difference = packed.gram[0] - start
    assert Fraction(float(difference[0, 1])) == exact[0][1] - Fraction(start)
    assert whole(packed.gram[0])[0, 1] == int(exact[0][1] / Fraction(STEP))


def test_the_order_of_observations_leaves_no_trace() -> None:
    rng = np.random.default_rng(1)
    each = np.array([snap(v / np.linalg.norm(v), 0.0) for v in rng.standard_normal((2_000, 4))])
    forwards, backwards = Packed.zeros(1, 4), Packed.zeros(1, 4)
    for x in each:
        observe(forwards, 0, x, 0.5)
    for x in each[::-1]:
        observe(backwards, 0, x, 0.5)
    np.testing.assert_array_equal(forwards.gram, backwards.gram)
    np.testing.assert_array_equal(forwards.moment, backwards.moment)


def test_the_most_observations_stay_below_the_limit() -> None:
    """Each entry of the longest rounded vector, of a million coordinates."""
    assert MOST_OBSERVATIONS * (1.0 + np.sqrt(1e6) * GRID) ** 2 < LIMIT


@pytest.mark.parametrize(
    "bad", [np.nan, np.inf, -np.inf, STEP / 2.0, 0.1, LIMIT, -2.0 * LIMIT, 2.0**70]
)
def test_what_is_not_exact_never_becomes_an_integer(bad: float) -> None:
    with pytest.raises(PrivacyError, match="whole multiples"):
        whole(np.array([1.0, bad]))
    assert is_whole(np.array([bad])) == (abs(bad) >= LIMIT and np.isfinite(bad))
