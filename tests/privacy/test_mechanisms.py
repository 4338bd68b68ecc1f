"""Arithmetic, covariance and exact cost of correlated noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.noise import advance_root, advance_tree, privatize_increment, root_weights
from fclub.errors import InvalidSetting
from fclub.privacy.calibration import epsilon_of
from fclub.privacy.mechanisms import (
    MECHANISMS,
    PROVISION,
    Increments,
    Mechanism,
    calibrate,
    count_schedule,
    plan_stream,
    variance_growth,
)
from fclub.privacy.sensitivity import Domain


def exact_multiplier(mechanism: Mechanism, releases: int) -> float:
    """The largest column norm of L⁻¹A, by definition."""
    prefix = np.tri(releases)
    return float(np.linalg.norm(np.linalg.solve(mechanism.factor(releases), prefix), axis=0).max())


def test_the_factor_squares_to_the_prefix_sum() -> None:
    factor = Increments(20, 1.0).factor(20)
    np.testing.assert_allclose(factor @ factor, np.tri(20), atol=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
@given(releases=st.integers(1, 40))
def test_closed_form_of_the_cost_is_exact(name: str, releases: int) -> None:
    mechanism = MECHANISMS[name](releases, 1.0)
    assert mechanism.multiplier(releases) == pytest.approx(exact_multiplier(mechanism, releases))
    assert mechanism.charged(releases) >= exact_multiplier(mechanism, releases) - 1e-12


@given(mu=st.floats(0.01, 10.0), sensitivity=st.floats(0.1, 3.0), releases=st.integers(1, 64))
def test_a_calibrated_stream_costs_exactly_mu(mu: float, sensitivity: float, releases: int) -> None:
    for mechanism in (
        calibrate("increments", mu, sensitivity, releases),
        calibrate("tree", mu, sensitivity, releases),
    ):
        cost = sensitivity * exact_multiplier(mechanism, releases) / mechanism.std
        assert cost == pytest.approx(mu)


def prefix_noise(name: str, draws: np.ndarray, entry_std: np.ndarray) -> np.ndarray:
    """Noise of every prefix as the kernels compute it."""
    releases, p, _ = draws.shape
    out = np.zeros_like(draws)
    if name.endswith("tree"):
        nodes = np.zeros((8, p, p))
        for leaf in range(releases):
            advance_tree(nodes, leaf + 1, draws[leaf], 1.0, out[leaf])
        return out * entry_std
    past = np.zeros_like(draws)
    for step in range(releases):
        advance_root(past, step, draws[step], entry_std, out[step])
    return out


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "slots"])
def test_kernels_combine_the_draws_as_the_factor_says(name: str) -> None:
    rng = np.random.default_rng(3)
    draws, entry_std = rng.standard_normal((13, 4, 4)), np.full((4, 4), 2.5)
    independent = (draws + draws.transpose(0, 2, 1)) / np.sqrt(2.0)
    factor = MECHANISMS[name](13, 2.5).factor(13)
    expected = 2.5 * np.einsum("tj,jpq->tpq", factor, independent)
    np.testing.assert_allclose(prefix_noise(name, draws, entry_std), expected, atol=1e-12)


def test_constant_noise_telescopes() -> None:
    """With every draw 1, z = √2 and the sum of the releases carries √2·Σf at each step."""
    releases, d = 9, 3
    past, noise = np.zeros((releases, d + 1, d + 1)), np.zeros((d + 1, d + 1))
    entry_std = np.full((d + 1, d + 1), 0.5)
    rng = np.random.default_rng(0)
    exact_gram, exact_moment = rng.random((releases, d, d)), rng.random((releases, d))
    sent_gram, sent_moment = exact_gram.copy(), exact_moment.copy()
    for step in range(releases):
        ones = np.ones((d + 1, d + 1))
        privatize_increment(past, noise, step, ones, entry_std, sent_gram[step], sent_moment[step])
        carried = 0.5 * np.sqrt(2.0) * root_weights(releases)[: step + 1].sum()
        total = (sent_gram - exact_gram)[: step + 1].sum(0)
        np.testing.assert_allclose(total, carried, atol=1e-12)
        np.testing.assert_allclose((sent_moment - exact_moment)[: step + 1].sum(0), carried, atol=1e-12)


def test_entries_without_deviation_are_sent_exactly() -> None:
    past, noise = np.zeros((1, 3, 3)), np.zeros((3, 3))
    entry_std = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    gram, moment = np.full((2, 2), 7.0), np.full(2, 3.0)
    gaussian = np.random.default_rng(1).standard_normal((3, 3))
    privatize_increment(past, noise, 0, gaussian, entry_std, gram, moment)
    assert gram[1, 1] == 7.0
    assert gram[0, 1] == gram[1, 0] != 7.0
    assert np.all(moment != 3.0)


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
    assert variance_growth(0).tolist() == [0.0]


@given(epsilon=st.floats(0.1, 10.0), first=st.integers(1, 100), name=st.sampled_from(list(MECHANISMS)))
def test_a_planned_stream_costs_its_budget(epsilon: float, first: int, name: str) -> None:
    plan = plan_stream(epsilon, 1e-5, Domain(low=-0.5, high=0.5), name, first)
    k = len(plan.schedule)
    cost = plan.sensitivity * exact_multiplier(plan.mechanism, k) / plan.mechanism.std
    assert epsilon_of(cost, 1e-5) == pytest.approx(epsilon)
    np.testing.assert_array_equal(plan.entry_std(2)[0], plan.mechanism.std)
    assert plan.last_std >= plan.mechanism.std


@given(first=st.integers(1, 1000), ratio=st.floats(1.05, 4.0))
def test_schedule_grows_to_the_provision(first: int, ratio: float) -> None:
    counts = count_schedule(first, ratio)
    assert counts[0] == first
    assert counts[-1] >= PROVISION > counts[-2]
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
