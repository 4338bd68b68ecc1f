"""Newcomers: served from the cluster they are most like, and no glue between clusters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.clustering import UserGraph
from fclub.core.statistics import Packed
from fclub.protocol.learners.edges import EdgeDeletion, OneCluster

DIM, DELETION = 3, 1.0
THETA = np.eye(DIM)


def learn(users: Packed, row: int, theta: np.ndarray, count: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((count, DIM))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    users.gram[row] += x.T @ x
    users.moment[row] += x.T @ (x @ theta)
    users.counts[row] += count


def two_clusters(rng: np.random.Generator, sparse: bool, each: int = 6) -> tuple[EdgeDeletion, Packed]:
    """Users 0 … each−1 like one θ, the next `each`, with more data, another; room for newcomers."""
    users = Packed.zeros(2 * each, DIM)
    for row in range(2 * each):
        learn(users, row, THETA[row // each], 200 + 100 * (row // each), rng)
    detector = EdgeDeletion(UserGraph(2 * each, rng, sparse, 2), DELETION, 1.0)
    return detector, users


def join(detector: EdgeDeletion, users: Packed) -> Packed:
    detector.add_user(known=False)
    return Packed(*(np.concatenate([array, np.zeros_like(array[:1])]) for array in users))


@pytest.mark.parametrize("sparse", [False, True])
@given(seed=st.integers(0, 2**32 - 1), counts=st.lists(st.integers(0, 120), min_size=1, max_size=8))
def test_newcomers_never_change_who_is_with_whom(sparse: bool, seed: int, counts: list[int]) -> None:
    """However many there are and whatever they like, the clusters stay what they are."""
    rng = np.random.default_rng(seed)
    detector, users = two_clusters(rng, sparse)
    before = detector.detect(users)
    assert sparse or before.tolist() == [0] * 6 + [1] * 6
    for count in counts:
        users = join(detector, users)
        learn(users, len(users.counts) - 1, THETA[rng.integers(DIM)], count, rng)
        for _ in range(2):
            np.testing.assert_array_equal(detector.detect(users)[:12], before)


@pytest.mark.parametrize("deletion", [0.3, DELETION])
def test_a_newcomer_without_data_is_where_most_data_are(deletion: float) -> None:
    detector, users = two_clusters(np.random.default_rng(0), sparse=False)
    detector.detect(users)
    detector.deletion = deletion
    assert detector.detect(join(detector, users))[12] == 1


@pytest.mark.parametrize("like", [0, 1])
def test_a_newcomer_moves_to_its_own_kind_and_settles_there(like: int) -> None:
    rng = np.random.default_rng(1)
    detector, users = two_clusters(rng, sparse=False)
    detector.detect(users)
    users, edges = join(detector, users), len(detector.graph)
    learn(users, 12, THETA[like], 5, rng)
    assert detector.detect(users)[12] == like
    assert (detector.guests, len(detector.graph)) == ([12], edges)
    learn(users, 12, THETA[like], 100, rng)
    assert detector.detect(users)[12] == like
    assert (detector.guests, len(detector.graph)) == ([], edges + 6)
    assert detector.detect(users)[12] == like


def test_newcomers_of_a_new_kind_found_a_cluster() -> None:
    rng = np.random.default_rng(2)
    detector, users = two_clusters(rng, sparse=False)
    for row in (12, 13, 14):
        users = join(detector, users)
        learn(users, row, THETA[2], 300, rng)
    for _ in range(2):
        assert detector.detect(users)[12:].tolist() == [2, 2, 2]
    assert detector.guests == []


def test_guests_do_not_keep_a_cluster_from_splitting() -> None:
    """Many visitors who come once, as in any live system, and two kinds of regular users."""
    rng = np.random.default_rng(3)
    detector, users = EdgeDeletion(UserGraph(1, rng), DELETION, 1.0), Packed.zeros(1, DIM)
    learn(users, 0, THETA[0], 1, rng)
    for row in range(1, 30):
        users = join(detector, users)
        learn(users, row, THETA[row % 2], 1, rng)
    assert set(detector.detect(users)) == {0}
    for row in range(6):
        learn(users, row, THETA[row % 2], 60, rng)
    detector.detect(users)
    for row in range(6):
        learn(users, row, THETA[row % 2], 400, rng)
    assert detector.detect(users)[:6].tolist() == [0, 1, 0, 1, 0, 1]
    assert len(detector.guests) == 24


@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_users_known_before_the_first_observation_make_the_printed_graph(seed: int, users: int) -> None:
    rng = np.random.default_rng(seed)
    grown, printed = (EdgeDeletion(UserGraph(n, rng), DELETION, 1.0) for n in (1, users))
    for _ in range(users - 1):
        grown.add_user(known=True)
    packed = Packed.zeros(users, DIM)
    for row in range(users):
        learn(packed, row, THETA[row % 2], int(rng.integers(400)), rng)
    np.testing.assert_array_equal(grown.detect(packed), printed.detect(packed))


def test_guests_survive_saving() -> None:
    detector, users = two_clusters(np.random.default_rng(4), sparse=False)
    users = join(detector, users)
    other = EdgeDeletion(UserGraph(0, np.random.default_rng(0)), DELETION, 1.0)
    other.restore(detector.state())
    assert other.guests == [12]
    np.testing.assert_array_equal(other.detect(users), detector.detect(users))


def test_one_cluster_takes_everybody() -> None:
    detector = OneCluster()
    detector.add_user(known=False)
    assert detector.detect(Packed.zeros(4, DIM)).tolist() == [0, 0, 0, 0]
