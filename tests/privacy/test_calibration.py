"""(ε, δ) ↔ μ against itself, dp-accounting and extreme values."""

import math

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.errors import InvalidSetting
from fclub.privacy.calibration import (
    compose,
    delta_of,
    epsilon_of,
    log_delta,
    mu_of,
    mu_within,
)

MU = st.floats(-4.0, 2.5).map(lambda x: 10.0**x)
DELTA = st.floats(-12.0, -0.1).map(lambda x: 10.0**x)


@given(mu=MU, delta=DELTA)
def test_epsilon_and_mu_are_inverse(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    if epsilon > 0.0:
        assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-6)
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-8)
    else:
        assert delta_of(0.0, mu) <= delta


@given(epsilon=st.floats(0.0, 300.0), delta=DELTA, factor=st.floats(1.01, 10.0))
def test_a_larger_budget_allows_a_larger_mu(epsilon: float, delta: float, factor: float) -> None:
    mu = mu_of(epsilon, delta)
    assert mu_of(epsilon * factor + 1e-3, delta) > mu
    assert mu_of(epsilon, min(0.9, delta * factor)) > mu


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 8.0, 40.0])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-9])
def test_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    sigma = dp_accounting.get_sigma_gaussian(epsilon, delta, tol=1e-12)
    assert 1.0 / mu_of(epsilon, delta) == pytest.approx(sigma, rel=1e-6)
    assert dp_accounting.get_epsilon_gaussian(1.0 / mu_of(epsilon, delta), delta) == pytest.approx(
        epsilon, rel=1e-6
    )


def test_composition_agrees_with_dp_accounting() -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    for noise in (2.0, 3.0, 5.0):
        accountant.compose(dp_accounting.GaussianDpEvent(noise))
    ours = epsilon_of(compose([1 / 2, 1 / 3, 1 / 5]), 1e-5)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


def test_known_values() -> None:
    assert mu_of(1.0, 0.1) == pytest.approx(0.92091, abs=1e-5)
    assert epsilon_of(4.0 * mu_of(1.0, 0.1), 0.1) == pytest.approx(10.66, abs=0.01)
    assert delta_of(0.0, 2.0) == pytest.approx(math.erf(1.0 / math.sqrt(2.0)))
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert compose([]) == 0.0
    assert compose([3.0, 4.0]) == pytest.approx(5.0)


def test_extreme_values_stay_finite() -> None:
    assert math.isfinite(log_delta(1000.0, 1.0))
    assert log_delta(1.0, 1e-3) < -1e5
    assert epsilon_of(1e3, 1e-5) == pytest.approx(1e6 / 2, rel=0.02)
    assert mu_of(1e-6, 1e-12) > 0.0


@pytest.mark.parametrize("call", [lambda: mu_of(-1.0, 0.1), lambda: mu_of(1.0, 0.0)])
def test_refuses_what_is_no_budget(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidSetting):
        call()


DISTANCE = st.floats(-30.0, -3.0).map(lambda x: 10.0**x)


@given(mu=st.floats(0.01, 8.0), delta=DELTA, distance=DISTANCE)
def test_discrete_noise_costs_more_and_its_bounds_agree(
    mu: float, delta: float, distance: float
) -> None:
    epsilon = epsilon_of(mu, delta, distance)
    assert epsilon >= epsilon_of(mu, delta) - 1e-9
    if math.isinf(epsilon):
        assert distance > 1e-8
        return
    assert delta_of(epsilon, mu, distance) <= delta * (1.0 + 1e-6)
    assert delta_of(epsilon, mu, distance) >= delta_of(epsilon, mu) * (1.0 - 1e-9)
    assert delta_of(epsilon + 0.5, mu, distance) <= delta_of(epsilon, mu, distance) * (1.0 + 1e-9)


@given(epsilon=st.floats(0.1, 500.0), delta=DELTA, distance=DISTANCE)
def test_what_is_left_for_mu_keeps_the_budget(epsilon: float, delta: float, distance: float) -> None:
    mu = mu_within(epsilon, delta, distance)
    assert mu <= mu_of(epsilon, delta) * (1.0 + 1e-9)
    assert mu == 0.0 or delta_of(epsilon, mu, distance) <= delta * (1.0 + 1e-6)
    if distance < 1e-20:
        assert mu == pytest.approx(mu_of(epsilon, delta), rel=1e-6)


def test_both_bounds_hold_for_the_discrete_gaussian_itself() -> None:
    """δ(ε) of a discrete Gaussian moved by one deviation, summed over its probabilities."""
    s = 64
    k = [math.exp(-0.5 * (n / s) ** 2) for n in range(-40 * s, 40 * s + 1)]
    total = math.fsum(k)
    for epsilon in (0.1, 1.0, 4.0, 12.0):
        exact = (
            math.fsum(max(0.0, (k[n] - math.exp(epsilon) * k[n - s])) / total for n in range(s, len(k)))
            + math.fsum(k[:s]) / total
        )
        assert exact <= delta_of(epsilon, 1.0, 1.0 / (48.0 * s * s))
        assert delta_of(epsilon, 1.0, 1.0 / (48.0 * s * s)) <= 1.3 * exact + 1e-3
