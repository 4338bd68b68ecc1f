"""What noised sums of observations by type say of types."""

from __future__ import annotations

import numpy as np
import pytest

from fclub.core.plus.evidence import Noise
from fclub.core.plus.type_noise import NoisedTypes, all_and_types, blend, information_of, rows_of

DIM, TYPES = 3, 2
NOISE = Noise(np.ones((DIM + 1, DIM + 1)), np.full(DIM, 0.1))


def some(visits: list[float], noise: float, seed: int = 0) -> NoisedTypes:
    """The sums of so many visits by type, in proportion to visits but for their noise."""
    rng = np.random.default_rng(seed)
    count = all_and_types(np.array(visits))
    errors = np.sqrt(noise) * rng.standard_normal((TYPES + 1, DIM))
    grams = count[:, None, None] * np.eye(DIM) / DIM
    return NoisedTypes(0.1 * count, count, grams, 0.2 * count[:, None] + errors, np.full(3, noise))


def test_exact_sums_say_what_their_users_could_say_of_the_centre() -> None:
    """n users with Q each, about a centre with spread W, know (Q⁻¹ + W)⁻¹ each."""
    rng = np.random.default_rng(1)
    root = rng.standard_normal((DIM, DIM))
    each, moment, spread = root @ root.T, rng.standard_normal(DIM), 0.3 * np.eye(DIM)
    Q, q = information_of(5.0, 5.0 * each, 5.0 * moment, 0.0, 0.5, spread, NOISE)
    one = np.linalg.inv(np.linalg.inv(each / 0.5) + spread)
    np.testing.assert_allclose(Q, 5.0 * one)
    np.testing.assert_allclose(q, 5.0 * one @ np.linalg.solve(each, moment))


def test_a_type_without_users_says_nothing_and_all_users_are_no_type() -> None:
    rows = rows_of(some([40.0, 0.0], 0.0), 0.5, 0.1 * np.eye(DIM), NOISE)
    assert rows.shape == (TYPES, DIM + DIM * (DIM + 1) // 2)
    assert rows[0, DIM] > 0.0
    assert not rows[1].any()


def test_two_releases_of_the_same_data_are_averaged() -> None:
    before, now = some([40.0, 60.0], 4.0, 1), some([40.0, 60.0], 4.0, 2)
    both = blend(before, now, 0.0, 0.5)
    np.testing.assert_allclose(both.moments, (before.moments + now.moments) / 2.0)
    np.testing.assert_allclose(both.noise, 2.0)


def test_an_earlier_release_is_stretched_to_the_visits_of_now() -> None:
    exact = blend(some([40.0, 60.0], 0.0), some([80.0, 120.0], 1.0, 2), 0.0, 0.5)
    np.testing.assert_allclose(exact.moments[:, 0], [16.0, 24.0, 40.0])
    np.testing.assert_allclose(exact.noise, 0.0)


def test_labels_that_move_make_an_earlier_release_worth_less_but_for_all_users() -> None:
    steady, moving = (
        blend(some([400.0, 600.0], 4.0, 1), some([400.0, 600.0], 4.0, 2), moved, 0.5)
        for moved in (0.0, 0.9)
    )
    assert np.all(moving.noise[:-1] > steady.noise[:-1])
    assert moving.noise[-1] == pytest.approx(steady.noise[-1])


def test_what_was_never_released_adds_nothing() -> None:
    nothing = some([0.0, 0.0], 0.0)._replace(moments=np.zeros((3, DIM)))
    now = some([40.0, 60.0], 4.0)
    for before, after in zip(now, blend(nothing, now, 1.0, 0.5), strict=True):
        np.testing.assert_allclose(after, before)
