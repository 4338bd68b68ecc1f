"""Encoding is exact in whole numbers of any size; decoding gives prefix sums back."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.lattice import STEP, is_whole
from fclub.privacy.encoding import decode, encode
from fclub.privacy.mechanisms import Increments


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=27))
def test_encoding_is_the_nearest_whole_number(values: list[int]) -> None:
    increments = np.array(values)[:, None]
    weights = Increments(27, 1.0).encoder[len(values) - 1, : len(values)]
    exact = sum(
        (Fraction(int(w), 2**26) * v for w, v in zip(weights, values, strict=True)), Fraction(0)
    )
    assert abs(int(encode(weights, increments)[0]) - exact) <= Fraction(1, 2)


def test_products_that_64_bits_cannot_hold_do_not_wrap() -> None:
    weights = Increments(4, 1.0).encoder[3]
    increments = np.full((4, 2), 2**52)
    expected = sum(int(w) for w in weights) * 2**52 / 2**26
    assert encode(weights, increments).tolist() == [int(expected)] * 2


@given(st.integers(0, 2**32), st.integers(1, 24))
def test_decoded_releases_are_prefix_sums(seed: int, releases: int) -> None:
    mechanism = Increments(24, 1.0)
    increments = np.random.default_rng(seed).integers(-(2**30), 2**30, (releases, 5))
    released = np.array(
        [encode(mechanism.encoder[t, : t + 1], increments[: t + 1]) for t in range(releases)]
    )
    prefix = decode(mechanism.factor(releases)[-1], released)
    assert is_whole(prefix)
    np.testing.assert_allclose(prefix, increments.sum(axis=0) * STEP, rtol=0.0, atol=8 * STEP)
