"""Exact conversion between (ε, δ) and Gaussian differential privacy, and composition.

A mechanism is μ-GDP when telling neighbours apart is no easier than telling N(0, 1) from N(μ, 1).
A Gaussian release with whitened sensitivity μ is exactly μ-GDP, and μ-GDP is equivalent to the whole
curve δ(ε) below: nothing is lost by keeping accounts in μ and converting at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, hypot, inf, log, pi, sqrt

from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from fclub.errors import InvalidSetting

STRICT_DELTA = 1e-5
"""Every budget is also shown at this δ: a large δ such as 0.1 allows publishing every tenth record."""

LARGEST_EPSILON = 1e4
"""A larger claim gets the noise of this one: with less, the lattice that noise lives on would show."""

_TINY = -1e9
"""Stands for log 0 where a root finder needs a finite number."""


def _mills(x: float) -> float:
    """Φ(−x)/φ(x), without underflow for large x."""
    return sqrt(pi / 2.0) * float(erfcx(x / sqrt(2.0)))


def log_delta(epsilon: float, mu: float) -> float:
    """log δ with δ = Φ(μ/2−ε/μ) − e^ε Φ(−μ/2−ε/μ).

    With a = μ/2−ε/μ and b = a−μ, e^ε φ(b) = φ(a): both terms are φ(a) times a Mills ratio, so
    neither e^ε nor a tail probability is ever formed.
    """
    if mu == 0.0:
        return -inf
    a, b = mu / 2.0 - epsilon / mu, -mu / 2.0 - epsilon / mu
    log_density = -0.5 * a * a - 0.5 * log(2.0 * pi)
    if a > 0.0:
        difference = float(ndtr(a)) - exp(log_density) * _mills(-b)
        return log(difference) if difference > 0.0 else -inf
    difference = _mills(-a) - _mills(-b)
    return log_density + log(difference) if difference > 0.0 else -inf


def delta_of(epsilon: float, mu: float, distance: float = 0.0) -> float:
    """δ at which a mechanism is (ε, δ)-DP whose discrete noise is this far from a μ-GDP one.

    `distance` bounds the total variation. Of two bounds the smaller counts (docs/privacy.md): the
    total variation, charged at the best ε′ ≤ ε, and the ratio of probabilities.
    """
    _check_finite("epsilon", epsilon)
    _check_finite("mu", mu)
    if distance == 0.0:
        return exp(log_delta(epsilon, mu))
    ratio = _ratio(mu, distance)
    bound = _added(min(epsilon, _turn(mu, distance)), mu, distance)
    if ratio < min(1.0, epsilon / 2.0):
        bound = min(bound, exp(log_delta(epsilon - 2.0 * ratio, mu) + ratio))
    return bound


def _added(epsilon: float, mu: float, distance: float) -> float:
    """δ_μ(ε) + (1 + e^ε)·distance."""
    return exp(log_delta(epsilon, mu)) + (1.0 + exp(epsilon)) * distance


def _turn(mu: float, distance: float) -> float:
    """Where `_added` is least: its derivative is e^ε·(distance − Φ(−μ/2−ε/μ))."""
    return max(0.0, -mu * (float(ndtri(min(distance, 1.0))) + mu / 2.0))


def _ratio(mu: float, distance: float) -> float:
    """η: probabilities differ by at most e^η unless a draw is beyond 40 + μ deviations.

    A draw of deviation s has η = (40 + μ)²/(8s²) and is 1/(48s²) of the distance.
    """
    return 6.0 * (40.0 + mu) ** 2 * distance


def _check_finite(name: str, value: float) -> None:
    if not 0.0 <= value < inf:
        raise InvalidSetting(f"{name} must be a finite number from 0, got {value!r}", value)


def _check_delta(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise InvalidSetting(f"delta must be between 0 and 1, got {delta!r}", delta)


def epsilon_of(mu: float, delta: float, distance: float = 0.0) -> float:
    """The smallest ε for which a mechanism that far from a μ-GDP one is (ε, δ)-DP; ∞ if none is."""
    _check_finite("mu", mu)
    _check_delta(delta)

    def excess(epsilon: float) -> float:
        return max(log_delta(epsilon, mu), _TINY) - log(delta)

    def excess_added(epsilon: float) -> float:
        return _added(epsilon, mu, distance) - delta

    if distance == 0.0:
        return _first_root(excess)
    ratio = _ratio(mu, distance)
    by_ratio = 2.0 * ratio + epsilon_of(mu, delta * exp(-ratio)) if ratio < 1.0 else inf
    if excess_added(0.0) <= 0.0:
        return 0.0
    turn = _turn(mu, distance)
    if excess_added(turn) >= 0.0:
        return by_ratio
    return min(by_ratio, float(brentq(excess_added, 0.0, turn, xtol=1e-12, rtol=1e-14)))


def _first_root(excess: Callable[[float], float]) -> float:
    """Where a decreasing function becomes 0; 0 if it is not above 0 there."""
    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-14))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ that (ε, δ) allows."""
    _check_finite("epsilon", epsilon)
    _check_delta(delta)

    def excess(log_mu: float) -> float:
        return max(log_delta(epsilon, exp(log_mu)), _TINY) - log(delta)

    low = high = 0.0
    while excess(low) > 0.0:
        low -= 2.0
    while excess(high) < 0.0:
        high += 2.0
    return exp(float(brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))


def mu_within(epsilon: float, delta: float, distance: float) -> float:
    """The largest μ that (ε, δ) allows where noise that is paid from all of it has this distance.

    Less μ means more noise, whose distance is smaller. 0 where nothing is left.
    """
    ratio = _ratio(mu_of(epsilon, delta), distance)
    left = delta - (1.0 + exp(min(epsilon, 700.0))) * distance
    added = mu_of(epsilon, left) if left > 0.0 else 0.0
    if ratio >= min(1.0, epsilon / 2.0):
        return added
    return max(added, mu_of(epsilon - 2.0 * ratio, delta * exp(-ratio)))


def compose(costs: Iterable[float]) -> float:
    """μ of several releases of the same data: √Σμ², adaptively chosen or not."""
    return hypot(0.0, *costs)
