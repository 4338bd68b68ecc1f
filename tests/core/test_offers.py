"""The best of many items, against sorting all of them."""

from __future__ import annotations

import numpy as np
import pytest

from fclub.core.items import ItemSums
from fclub.core.kernels import choose
from fclub.core.offers import best_items, mix
from fclub.core.types import Floats


def world(count: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((4, 4))
    return rng.standard_normal((count, 4)), rng.standard_normal(4), root @ root.T


@pytest.mark.parametrize("count", [1, 3, 50, 80])
def test_best_items_come_first(count: int) -> None:
    items, theta, inverse = world(50)
    on_offer = np.arange(50) % 3 != 0
    places, scores = best_items(items, on_offer, (theta, inverse, 0.7, np.inf), count)
    every = items @ theta + 0.7 * np.sqrt(np.einsum("ki,ij,kj->k", items, inverse, items))
    wanted = [k for k in np.argsort(-every, kind="stable") if on_offer[k]][:count]
    assert places.tolist() == wanted
    np.testing.assert_allclose(scores, every[wanted])


def test_the_first_is_the_one_that_a_server_chooses() -> None:
    for seed in range(20):
        items, theta, inverse = world(30, seed)
        places, _ = best_items(items, np.ones(30, dtype=np.bool_), (theta, inverse, 0.5, np.inf), 4)
        assert places[0] == choose(items, theta, inverse, 0.5)


def test_the_first_of_equals_wins() -> None:
    items, theta, inverse = world(1)
    same = np.repeat(items, 5, axis=0)
    places, _ = best_items(same, np.ones(5, dtype=np.bool_), (theta, inverse, 0.5, np.inf), 3)
    assert places.tolist() == [0, 1, 2]


def test_nothing_on_offer_is_nothing() -> None:
    items, theta, inverse = world(3)
    places, scores = best_items(items, np.zeros(3, dtype=np.bool_), (theta, inverse, 0.5, np.inf), 2)
    assert len(places) == len(scores) == 0


@pytest.mark.parametrize(("share", "best"), [(0.3, 2), (1.0, 0), (1e-9, 3)])
def test_a_mixed_choice_is_as_likely_as_it_says(share: float, best: int) -> None:
    """Over coins at the middles of equal parts of [0, 1), each item comes up as often as claimed."""
    count, coins = 5, (np.arange(100_000) + 0.5) / 100_000
    chosen = [mix(best, count, share, float(coin)) for coin in coins]
    for item in range(count):
        found = [chance for one, chance in chosen if one == item]
        claimed = share / count + (1.0 - share) * (item == best)
        assert len(found) / len(coins) == pytest.approx(claimed, abs=1e-4)
        assert set(found) <= {claimed}


def test_the_largest_coin_is_the_last_item() -> None:
    chosen, chance = mix(0, 3, 1.0, 1.0 - 2.0**-53)
    assert chosen == 2
    assert chance == pytest.approx(1 / 3)


def test_of_items_that_may_be_worth_the_most_the_greatest_mean_comes_first() -> None:
    for seed in range(20):
        items, theta, inverse = world(30, seed)
        means = items @ theta
        every = means + 0.5 * np.sqrt(np.einsum("ki,ij,kj->k", items, inverse, items))
        capped = np.minimum(every, 1.0)
        places, scores = best_items(items, np.ones(30, dtype=np.bool_), (theta, inverse, 0.5, 1.0), 30)
        assert places.tolist() == np.lexsort((-means * (capped == 1.0), -capped)).tolist()
        np.testing.assert_allclose(scores, capped[places])
        assert choose(items, theta, inverse, 0.5, 1.0) == places[0]


def test_what_is_known_of_items_counts() -> None:
    items, theta, inverse = world(30)
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 5, 30)
    known = ItemSums(counts, counts * rng.integers(-(2**16), 2**16, 30), np.array([0.1, 0.2, 3.0]))
    places, scores = best_items(items, np.ones(30, bool), (theta, inverse, 0.7, np.inf), 30, known)
    means, variances = known.effects()
    np.testing.assert_allclose(means, (known.sums / 2**16 - 0.1 * counts) / (counts + 3.0))
    np.testing.assert_allclose(variances, 0.2 / (counts + 3.0))
    spread = np.einsum("ki,ij,kj->k", items, inverse, items) + variances
    every = items @ theta + means + 0.7 * np.sqrt(spread)
    assert places.tolist() == np.argsort(-every, kind="stable").tolist()
    np.testing.assert_allclose(scores, every[places])
