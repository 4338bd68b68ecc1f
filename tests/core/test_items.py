"""Effects of items, against formulas with every residual at hand; what is taken out leaves nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.items import (
    DUE,
    EXPECTED,
    EXPECTED_EFFECT,
    EXPECTED_NOISE,
    MEAN,
    NO_ITEMS,
    NO_SUMS,
    NOISE,
    RATIO,
    UNIT,
    ItemBook,
    ItemEffects,
    Residuals,
    Shelf,
    add_residual,
    change_residuals,
    choose_known,
    fit_effects,
    in_units,
    learn_item,
)
from fclub.core.kernels import choose
from fclub.core.types import Floats, Indices


def effects_of(items: Indices, residuals: Floats, count: int) -> ItemEffects:
    effects = ItemEffects.zeros(1, count)
    for item, residual in zip(items.tolist(), residuals.tolist(), strict=True):
        add_residual(effects, 0, item, in_units(residual))
    return effects


@given(st.integers(0, 1000), st.integers(0, 200), st.floats(0.0, 0.5))
def test_the_model_is_analysis_of_variance_by_moments(seed: int, number: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    items = rng.integers(0, 30, number)
    truth = 0.1 + spread * rng.standard_normal(30)
    residuals = truth[items] + 0.4 * rng.standard_normal(number)
    effects = effects_of(items, residuals, 30)
    fit_effects(effects, 0)
    whole = np.floor(np.clip(residuals, -8.0, 8.0) / UNIT + 0.5) * UNIT
    groups = [whole[items == i] for i in range(30) if (items == i).any()]
    mean = whole.mean() if number else 0.0
    within = sum(((group - group.mean()) ** 2).sum() for group in groups)
    between = sum(len(group) * (group.mean() - mean) ** 2 for group in groups)
    noise = (within + EXPECTED * EXPECTED_NOISE) / (number - len(groups) + EXPECTED)
    effect = between - max(len(groups) - 1, 0) * noise + EXPECTED * EXPECTED_EFFECT
    effect = max(effect / (number + EXPECTED), 1e-6)
    found = effects.model[0]
    np.testing.assert_allclose([found[MEAN], found[NOISE]], [mean, noise], atol=1e-9)
    assert found[RATIO] == pytest.approx(noise / effect)


def test_variances_are_found_where_there_is_much_to_learn_from() -> None:
    rng = np.random.default_rng(1)
    items = rng.integers(0, 500, 20_000)
    truth = 0.15 * rng.standard_normal(500)
    effects = effects_of(items, truth[items] + 0.4 * rng.standard_normal(20_000), 500)
    noise, effect = effects.model[0, NOISE], effects.model[0, NOISE] / effects.model[0, RATIO]
    assert noise == pytest.approx(0.16, rel=0.05)
    assert effect == pytest.approx(truth.var(), rel=0.1)
    rates = effects.sums[0] * UNIT - effects.counts[0] * effects.model[0, MEAN]
    learned = rates / (effects.counts[0] + effects.model[0, RATIO])
    assert ((learned - truth) ** 2).mean() < 0.4 * truth.var()


@given(st.integers(0, 1000))
def test_what_is_taken_out_leaves_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    items, residuals = rng.integers(0, 9, 60), 0.7 * rng.standard_normal(60)
    gone = rng.random(60) < 0.4
    effects = effects_of(items, residuals, 9)
    for place in rng.permutation(np.flatnonzero(gone)).tolist():
        residual = in_units(residuals[place])
        change_residuals(effects, 0, int(items[place]), -1, -residual, -residual * residual)
    other = effects_of(items[~gone], residuals[~gone], 9)
    for one in (effects, other):
        one.totals[0, DUE] = 0
        fit_effects(one, 0)
    for left, whole in zip(effects, other, strict=True):
        np.testing.assert_array_equal(left, whole)


def test_what_leaves_counts_towards_the_next_fit() -> None:
    """Where as many rewards leave as come, the model still follows what they are."""
    book = ItemBook(4)
    for step in range(400):
        residual = in_units(0.5 if step < 200 else -0.25)
        book.add(step % 4, "abcd"[step % 4], Residuals(1, residual, residual * residual))
        if step >= 200:
            gone = in_units(0.5)
            book.add(step % 4, "abcd"[step % 4], Residuals(-1, -gone, -gone * gone))
    assert book.first(4).model[MEAN] == pytest.approx(-0.25, abs=0.1)


def test_residuals_have_a_unit_and_a_limit() -> None:
    assert [in_units(0.5), in_units(-0.25), in_units(100.0)] == [2**15, -(2**14), 2**19]
    assert in_units(UNIT / 3) == 0


@given(st.integers(0, 1000), st.floats(0.0, 2.0))
def test_the_item_with_the_highest_bound_is_chosen(seed: int, radius: float) -> None:
    """Score by score: mean and variance of taste and effect added up, of which there may be none."""
    rng = np.random.default_rng(seed)
    catalogue = rng.standard_normal((12, 3)) / 2
    shelf = Shelf.of(2, 12, 3)
    theta = rng.standard_normal(3)
    for item in rng.integers(0, 10, 40):
        learn_item(shelf, 1, catalogue[item], theta, float(rng.integers(2)))
    root = rng.standard_normal((3, 3))
    inverse = root @ root.T
    offer = catalogue[rng.permutation(12)[:6]].copy()
    noise, ratio, mean = (shelf.effects.model[1, k] for k in (NOISE, RATIO, MEAN))
    scores = []
    for x in offer:
        same = (shelf.features == x).all(axis=1)
        n = shelf.effects.counts[1][same].sum()
        total = UNIT * shelf.effects.sums[1][same].sum()
        variance = x @ inverse @ x + noise / (n + ratio)
        scores.append(theta @ x + (total - n * mean) / (n + ratio) + radius * np.sqrt(variance))
    chosen = choose_known(shelf, 1, offer, theta, inverse, radius, np.inf)
    assert scores[chosen] >= max(scores) - 1e-9
    plain = choose_known(NO_ITEMS, 0, offer, theta, inverse, radius, np.inf)
    assert plain == choose(offer, theta, inverse, radius)


def test_items_beyond_the_room_are_not_learned() -> None:
    shelf = Shelf.of(1, 2, 2)
    for value in (0.1, 0.2, 0.3):
        learn_item(shelf, 0, np.array([value, 0.5]), np.zeros(2), 1.0)
    assert shelf.used[0] == 2
    assert shelf.effects.counts.sum() == 2


def test_effects_move_with_the_rows_of_a_catalogue() -> None:
    book = ItemBook(4)
    for row, key in enumerate("abcd"):
        book.add(row, key, Residuals(row + 1, 10 * row, 100 * row))
    book.leave(1, "b")
    book.add(-1, "x", Residuals(1, 5, 25))
    book.move(np.array([0, 2, 3]), 8)
    book.enter(3, "b")
    book.enter(4, "x")
    book.fit()
    sums = book.first(6)
    assert sums.counts.tolist() == [1, 3, 4, 2, 1, 0]
    assert sums.sums.tolist() == [0, 20, 30, 10, 5, 0]
    assert book._squares.tolist() == [0, 200, 300, 100, 25, 0, 0, 0]
    assert not book._elsewhere
    some = sums.at(np.array([5, 3]))
    assert some.counts.tolist() == [0, 2]
    assert some.sums.tolist() == [0, 10]
    assert NO_SUMS.at(np.array([5, 3])) is NO_SUMS
    book.add(-1, "y", Residuals(1, 3, 9))
    book.add(-1, "y", Residuals(-1, -3, -9))
    assert not book._elsewhere
