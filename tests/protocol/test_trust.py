"""What an honest server can never send is refused; what it can send is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fclub
from fclub.core.lattice import STEP
from fclub.core.paper.ucb import Rules, make_rules, ridge_bounds, tree_bounds
from fclub.core.statistics import Statistics
from fclub.core.types import Floats
from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.clusters import check_report, check_upload
from fclub.protocol.messages import MAX_COUNT, check_statistics

DIM = 3
PROTOCOL = fclub.Protocol()


def rules(private: bool = False) -> Rules:
    bounds = tree_bounds(DIM, 4, PROTOCOL, fclub.Privacy()) if private else ridge_bounds(PROTOCOL)
    return make_rules(4, PROTOCOL, bounds)


def honest(x: Floats, y: Floats) -> Statistics:
    return Statistics(x.T @ x, x.T @ y, len(y))


@given(st.integers(0, 10**6), st.integers(0, 200))
def test_what_unit_vectors_and_rewards_give_is_believed(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, DIM))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    statistics, plain = honest(x, rng.random(count)), rules()
    check_upload(statistics, np.eye(DIM), plain)
    check_report(1, 1, [(0, statistics.shifted(plain.report_shift))], plain)


@pytest.mark.parametrize(
    ("gram", "moment", "count", "reason"),
    [
        (np.eye(DIM) / DIM, np.zeros(DIM), -1, "count -1"),
        (np.eye(DIM) / DIM, np.zeros(DIM), MAX_COUNT + 1, "count"),
        (np.diag([2.0, 0, 0]), np.zeros(DIM), 1, "entry"),
        (np.eye(DIM) / DIM, np.full(DIM, 1.5), 1, "moment"),
        (np.eye(DIM), np.zeros(DIM), 1, "trace"),
        (np.diag([1.0, -1.0, 0.5]), np.zeros(DIM), 1, "exact statistics are indefinite"),
    ],
)
def test_impossible_statistics_are_refused(
    gram: Floats, moment: Floats, count: int, reason: str
) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        check_upload(Statistics(gram, moment, count), 10 * np.eye(DIM), rules())


def test_a_noisy_upload_may_be_indefinite_but_not_its_cluster() -> None:
    private = rules(private=True)
    deviation = float(round(private.noise_std))
    noisy = Statistics(np.diag([-deviation, deviation, 0.0]), np.zeros(DIM), 1)
    noisy = noisy.shifted(private.upload_shift)
    below = -(deviation + private.upload_shift)
    check_upload(noisy, (abs(below) + 1.0) * np.eye(DIM), private)
    with pytest.raises(InvalidMessage, match="global cluster indefinite"):
        check_upload(noisy, below * np.eye(DIM), private)


def test_a_report_answers_the_phase_with_clusters_of_its_own() -> None:
    plain = rules()
    fine = Statistics(np.eye(DIM) / DIM, np.zeros(DIM), 1).shifted(plain.report_shift)
    for phase, current, clusters, reason in (
        (0, 1, [(0, fine)], "phase 0"),
        (2, 1, [(0, fine)], "phase 2"),
        (1, 1, [], "0 clusters"),
        (1, 1, [(4, fine), (4, fine)], "twice"),
    ):
        with pytest.raises(InvalidMessage, match=reason):
            check_report(phase, current, clusters, plain)


def test_a_noisy_report_must_be_definite() -> None:
    private = rules(private=True)
    shift = private.report_shift
    torn = np.diag([2 * shift + 1.0, -1.0, shift])
    loud = private._replace(noise_std=10 * shift)
    with pytest.raises(InvalidMessage, match="indefinite"):
        check_report(1, 1, [(0, Statistics(torn, np.zeros(DIM), 1))], loud)


def test_released_statistics_lie_on_the_lattice() -> None:
    """What carries noise is a whole number of lattice steps; anything else was not drawn as it must."""
    off = Statistics(np.eye(2) * 0.5 + STEP / 3.0, np.zeros(2), 4)
    check_statistics(off, 0.0, 0.0)
    with pytest.raises(InvalidMessage, match="not on the lattice"):
        check_statistics(off, 0.0, 1.0)
