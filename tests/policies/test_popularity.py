"""Like rates by item, against dictionaries; items are found again however the table is filled."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fclub.config import Problem
from fclub.core.items import EMPTY
from fclub.policies.local.popular import FIRST_ROOM, Popular, with_room


def started(dim: int = 3, **parameters: float) -> Popular:
    policy = Popular(**parameters)
    policy.start(Problem(users=4, servers=2, dim=dim), [0, 0, 1, 1])
    return policy


@given(st.integers(0, 1000), st.sampled_from([0.0, 1.0]))
def test_the_best_liked_item_wins_whoever_asks(seed: int, exploration: float) -> None:
    rng = np.random.default_rng(seed)
    policy = started(exploration=exploration)
    catalogue = rng.random((12, 3)) / 2
    shown, likes = np.zeros(12), np.zeros(12)
    for _ in range(80):
        item, reward = int(rng.integers(10)), float(rng.integers(2))
        policy.update(int(rng.integers(4)), catalogue[item], reward)
        shown[item] += 1
        likes[item] += reward
    base = (likes.sum() + 1) / (shown.sum() + 2)
    rate = (likes + 2 * base) / (shown + 2)
    score = rate + exploration * np.sqrt(rate * (1 - rate) / (shown + 3))
    for _ in range(10):
        offer = rng.permutation(12)[:5]
        chosen = offer[policy.recommend(int(rng.integers(4)), catalogue[offer])]
        assert score[chosen] >= score[offer].max() - 1e-12


def test_room_grows_with_the_items() -> None:
    policy, rng = started(dim=2), np.random.default_rng(1)
    catalogue = rng.random((10 * FIRST_ROOM, 2)) / 2
    for item in catalogue:
        policy.update(0, item, float(item[0] > 0.25))
    state = policy._state
    assert state.used[0] == len(catalogue)
    assert state.room > 0
    np.testing.assert_array_equal(state.features[: len(catalogue)], catalogue)
    for offer in np.split(catalogue, len(catalogue) // 10):
        liked = offer[:, 0] > 0.25
        assert liked[policy.recommend(1, offer)] == liked.any()


def test_nothing_is_lost_when_many_items_meet_in_one_place() -> None:
    """A form of zeros puts every search at the same place of the table."""
    policy = started(dim=2)
    policy._state = policy._state._replace(form=np.zeros(2))
    items = np.linspace(0.0, 0.5, 40).reshape(20, 2)
    for _ in range(3):
        for item in items:
            policy.update(0, item, 1.0)
    state = with_room(policy._state, 100)
    assert state.used[0] == 20
    np.testing.assert_array_equal(state.shown[:20], 3)
    assert np.count_nonzero(state.table != EMPTY) == 20
