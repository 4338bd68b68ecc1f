"""What a caller may hand in, and the names of the refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fclub.core.inputs import (
    MAX_ID,
    MAX_USER_BYTES,
    RewardRange,
    as_features,
    as_index,
    as_items,
    as_reward,
    check_id,
    check_user,
)
from fclub.errors import EmptyItems, InvalidFeatures, InvalidInput, InvalidReward


@given(arrays(np.float64, (4, 3), elements=st.floats(-0.5, 0.5)))
def test_valid_items_pass_unchanged(items: np.ndarray) -> None:
    np.testing.assert_array_equal(as_items(items, 3), items)
    np.testing.assert_array_equal(as_features(items[0].tolist(), 3), items[0])


def test_rounding_above_one_is_allowed_and_not_changed() -> None:
    x = np.array([1.0 + 1e-12, 0.0])
    assert as_features(x, 2)[0] == 1.0 + 1e-12


@pytest.mark.parametrize(
    "items",
    [
        np.full((2, 3), np.nan),
        np.full((2, 3), np.inf),
        np.full((2, 3), 1e200),
        np.full((2, 3), 0.6),
        np.zeros((2, 4)),
        np.zeros(3),
        np.zeros((1, 2, 3)),
        [["a", "b", "c"]],
        [["0.1", "0.1", "0.1"]],
        [[0.1, 0.1], [0.1, 0.1, 0.1]],
        [[0.1j, 0.1, 0.1]],
        [[None, 0.1, 0.1]],
    ],
)
def test_bad_items_are_refused_with_the_value(items: object) -> None:
    with pytest.raises(InvalidFeatures) as refusal:
        as_items(items, 3)
    assert refusal.value.value is not None


@pytest.mark.parametrize("items", [[], np.zeros((0, 3))])
def test_no_items(items: object) -> None:
    with pytest.raises(EmptyItems):
        as_items(items, 3)


@pytest.mark.parametrize("x", [np.zeros((1, 3)), 0.5, np.zeros(2), [], np.array([np.nan, 0, 0])])
def test_bad_features(x: object) -> None:
    with pytest.raises(InvalidFeatures):
        as_features(x, 3)


@given(st.floats(0, 1))
def test_rewards_in_range(reward: float) -> None:
    assert as_reward(reward) == reward
    assert as_reward(np.float64(reward)) == reward


@pytest.mark.parametrize(
    "reward", [-1e-9, 1.0001, np.nan, np.inf, -np.inf, "1", b"1", None, [1, 2], 1j]
)
def test_bad_rewards_are_refused_with_the_value(reward: object) -> None:
    with pytest.raises(InvalidReward) as refusal:
        as_reward(reward)
    assert refusal.value.value is reward


def test_rewards_may_have_another_range_or_none() -> None:
    assert as_reward(-3, -5.0, 5.0) == -3.0
    assert as_reward(1e9, -np.inf, np.inf) == 1e9
    with pytest.raises(InvalidReward, match=r"outside \[-5, 5\]"):
        as_reward(6.0, -5.0, 5.0)
    with pytest.raises(InvalidReward, match="not finite"):
        as_reward(np.inf, -np.inf, np.inf)


def test_rewards_are_mapped_to_the_model_and_back() -> None:
    stars = RewardRange(1.0, 5.0)
    assert [stars.to_model(r) for r in (1.0, 2.0, 5.0)] == [0.0, 0.25, 1.0]
    assert [stars.from_model(r) for r in (0.0, 0.25, 1.0)] == [1.0, 2.0, 5.0]
    assert RewardRange().to_model(0.3) == RewardRange().from_model(0.3) == 0.3


def test_rewards_outside_their_range_are_refused_or_clipped() -> None:
    for outside in (0.0, 5.1, float("inf")):
        with pytest.raises(InvalidReward, match="is not from 1 to 5"):
            RewardRange(1.0, 5.0).to_model(outside)
    minutes = RewardRange(0.0, 30.0, clip=True)
    assert [minutes.to_model(r) for r in (-1.0, 15.0, 1e9)] == [0.0, 0.5, 1.0]


def test_names_and_ids_have_limits() -> None:
    check_user("ä" * (MAX_USER_BYTES // 2))
    check_id("i" * MAX_ID)
    for user in ("", "ä" * (MAX_USER_BYTES // 2) + "x"):
        with pytest.raises(InvalidInput) as refused:
            check_user(user)
        assert refused.value.value == user
    for key in ("", "i" * (MAX_ID + 1)):
        with pytest.raises(InvalidInput, match="characters"):
            check_id(key)


def test_what_float32_rounds_up_is_told_with_the_cure() -> None:
    """The bounds of private releases have no room for its rounding."""
    x = np.array([0.6, 0.8], dtype=np.float32)
    with pytest.raises(InvalidFeatures, match=r"norm 1.0000000\d+, above 1: divide them by it"):
        as_features(x, 2)
    exact = x.astype(np.float64)
    as_features(exact / np.linalg.norm(exact), 2)


@pytest.mark.parametrize("index", [0, np.int64(2)])
def test_an_index_of_an_item_is_taken(index: object) -> None:
    assert as_index(index, 3, "mine") == index


@pytest.mark.parametrize("index", [None, True, 1.0, -1, 3, np.array([1])])
def test_what_is_no_index_of_an_item_is_refused(index: object) -> None:
    with pytest.raises(InvalidInput, match="mine: _recommend must return an index from 0 to 2"):
        as_index(index, 3, "mine")
