"""Observations that fade: an independent sum with weights, and the limit in which nothing does."""

import numpy as np
import pytest

from fclub.core.plus.fading import fade_in, keep_share, mean_weight
from fclub.core.statistics import Packed


def test_an_observation_counts_half_after_a_half_life() -> None:
    assert keep_share(5.0) ** 5 == pytest.approx(0.5)
    assert keep_share(0.0) == 1.0


def test_what_is_left_is_a_weighted_sum() -> None:
    rng, kept, recent = np.random.default_rng(0), keep_share(3.0), Packed.zeros(2, 4)
    items, rewards = rng.standard_normal((20, 4)), rng.random(20)
    for x, y in zip(items, rewards, strict=True):
        fade_in(recent, 1, x, y, kept)
    weights = kept ** np.arange(19, -1, -1.0)
    assert recent.gram[1] == pytest.approx((items * weights[:, None]).T @ items)
    assert recent.moment[1] == pytest.approx((weights * rewards) @ items)
    assert recent.counts.tolist() == [0, 20]
    assert not recent.gram[0].any()
    assert mean_weight(20, kept) == pytest.approx(weights.mean())


def test_without_fading_every_observation_counts_one() -> None:
    assert mean_weight(7, 1.0) == 1.0
    assert mean_weight(0, 0.5) == 0.0
