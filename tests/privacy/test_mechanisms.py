"""Arithmetic, covariance and exact cost of correlated noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.lattice import MOST_OBSERVATIONS, STEP
from fclub.core.noise import advance_tree
from fclub.errors import InvalidSetting
from fclub.privacy.calibration import epsilon_of
from fclub.privacy.mechanisms import (
    MECHANISMS,
    Increments,
    Mechanism,
    calibrate,
    count_schedule,
    plan_stream,
)
from fclub.privacy.sensitivity import Domain


def exact_multiplier(mechanism: Mechanism, releases: int) -> float:
    """The largest column norm of L⁻¹A, by definition."""
    prefix = np.tri(releases)
    return float(np.linalg.norm(np.linalg.solve(mechanism.factor(releases), prefix), axis=0).max())


def test_what_is_encoded_is_decoded_to_prefix_sums() -> None:
    factor = Increments(20, 1.0).factor(20)
    encoder = Increments(20, 1.0).encoder * 2.0**-26
    np.testing.assert_allclose(factor @ encoder, np.tri(20), atol=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
@given(releases=st.integers(1, 40))
def test_closed_form_of_the_cost_is_exact(name: str, releases: int) -> None:
    mechanism = MECHANISMS[name](releases, 1.0)
    assert mechanism.multiplier(releases) == pytest.approx(exact_multiplier(mechanism, releases))
    assert mechanism.charged(releases) >= exact_multiplier(mechanism, releases) - 1e-12


@given(mu=st.floats(0.01, 10.0), sensitivity=st.floats(0.1, 3.0), releases=st.integers(1, 64))
def test_a_calibrated_stream_costs_exactly_mu(mu: float, sensitivity: float, releases: int) -> None:
    for mechanism in (
        calibrate("increments", mu, sensitivity, releases, entries=9),
        calibrate("tree", mu, sensitivity, releases, entries=9),
    ):
        cost = sensitivity * exact_multiplier(mechanism, releases) / mechanism.std
        assert cost == pytest.approx(mu, rel=1e-5)
        assert mechanism.cost(sensitivity, releases) == pytest.approx(mu)
        assert cost <= mechanism.cost(sensitivity, releases) * (1.0 + 1e-12)


@pytest.mark.parametrize("name", ["tree", "whole-tree"])
def test_kernels_combine_the_draws_as_the_factor_says(name: str) -> None:
    draws = np.random.default_rng(3).standard_normal((13, 4, 4))
    nodes, out = np.zeros((8, 4, 4)), np.zeros_like(draws)
    for leaf in range(13):
        advance_tree(nodes, leaf + 1, draws[leaf], out[leaf])
    expected = np.einsum("tj,jpq->tpq", MECHANISMS[name](13, 1.0).factor(13), draws)
    np.testing.assert_allclose(out, expected, atol=1e-12)


def test_covariance_and_accumulated_variance_of_a_stream() -> None:
    releases, trials = 6, 20_000
    mechanism = Increments(releases, 1.7)
    rng = np.random.default_rng(11)
    draws = rng.standard_normal((trials, releases))
    noise = 1.7 * draws @ mechanism.factor(releases).T
    np.testing.assert_allclose(noise.var(axis=0), mechanism.variances[1:], rtol=0.05)
    claimed = 1.7**2 * mechanism.factor(releases) @ mechanism.factor(releases).T
    np.testing.assert_allclose(np.diag(claimed), mechanism.variances[1:])


def test_against_the_tree() -> None:
    """Deviation of the last of 13 prefixes, whole stream at the same μ."""
    k = 13
    root, tree = calibrate("increments", 1.0, 1.0, k), calibrate("tree", 1.0, 1.0, k)
    assert root.std * np.linalg.norm(root.factor(k)[-1]) == pytest.approx(1.88, abs=0.01)
    assert tree.std * np.linalg.norm(tree.factor(k)[-1]) == pytest.approx(12**0.5)


@given(epsilon=st.floats(0.1, 10.0), first=st.integers(1, 100), name=st.sampled_from(list(MECHANISMS)))
def test_a_planned_stream_costs_its_budget(epsilon: float, first: int, name: str) -> None:
    plan = plan_stream(epsilon, 1e-5, Domain(low=-0.5, high=0.5), 2, name, first)
    k = len(plan.schedule)
    cost = plan.sensitivity * exact_multiplier(plan.mechanism, k) / plan.mechanism.std
    assert epsilon_of(cost, 1e-5) == pytest.approx(epsilon, rel=1e-4)
    whole = plan.mechanism.cost(plan.sensitivity, k), 1e-5, plan.mechanism.distance(k)
    assert epsilon * (1.0 - 1e-4) <= epsilon_of(*whole) <= epsilon * (1.0 + 1e-9)
    np.testing.assert_array_equal(plan.entry_std[0], plan.mechanism.std)
    assert plan.last_std >= plan.least_std > 0.0


def test_rounding_and_discrete_noise_are_charged() -> None:
    """Each release may move by a step in every entry, and each draw is 1/(48s²) from a rounded one."""
    mechanism = Increments(32, 2.0**-4, 65)
    plain = 1.25 * mechanism.multiplier(32) / mechanism.std
    added = mechanism.cost(1.25, 1) - plain
    assert added == pytest.approx(STEP * np.sqrt(32 * 65) / 2.0**-4, rel=1e-6)
    assert added < 2.0**-16
    assert mechanism.distance(1) == pytest.approx(32 * 65 / 48.0 / (2.0**22) ** 2)
    assert (1.0 + np.e) * mechanism.distance(32) < 1e-10
    tree = MECHANISMS["tree"](32, 2.0**-4, 65)
    assert tree.cost(1.25, 8) == 1.25 * 2.0 / 2.0**-4
    assert tree.distance(8) == pytest.approx(mechanism.distance(32) / 8)


@pytest.mark.parametrize("epsilon", [1e11, 1e12])
def test_a_budget_for_which_the_lattice_is_too_coarse_is_refused(epsilon: float) -> None:
    with pytest.raises(InvalidSetting, match="too large"):
        plan_stream(epsilon, 1e-5, Domain(), 3)


@given(first=st.integers(1, 1000), ratio=st.floats(1.05, 4.0))
def test_schedule_grows_to_the_provision(first: int, ratio: float) -> None:
    counts = count_schedule(first, ratio)
    assert counts[0] == first
    assert counts[-1] == MOST_OBSERVATIONS > counts[-2]
    assert np.all(np.diff(counts) >= 1)
    assert np.all(counts[1:] <= np.maximum(counts[:-1] + 1, np.ceil(counts[:-1] * ratio)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: count_schedule(0, 2.0),
        lambda: count_schedule(1, 1.0),
        lambda: calibrate("increments", 0.0, 1.0, 3),
        lambda: calibrate("tree", 1.0, 1.0, 0),
    ],
)
def test_refuses_impossible_settings(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidSetting):
        call()
