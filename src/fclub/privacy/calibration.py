"""Exact conversion between (ε, δ) and Gaussian differential privacy, and composition.

A mechanism is μ-GDP when telling neighbours apart is no easier than telling N(0, 1) from N(μ, 1).
A Gaussian release with whitened sensitivity μ is exactly μ-GDP, and μ-GDP is equivalent to the whole
curve δ(ε) below: nothing is lost by keeping accounts in μ and converting at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, hypot, inf, isfinite, log, pi, sqrt

from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

from fclub.config import require

STRICT_DELTA = 1e-5
"""Every budget is also shown at this δ: a large δ such as 0.1 allows publishing every tenth record."""

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


def delta_of(epsilon: float, mu: float) -> float:
    """δ at which a μ-GDP mechanism is (ε, δ)-DP."""
    require(epsilon >= 0.0 and isfinite(epsilon), "epsilon must be a finite number from 0", epsilon)
    require(mu >= 0.0 and isfinite(mu), "mu must be a finite number from 0", mu)
    return exp(log_delta(epsilon, mu))


def _check_delta(delta: float) -> None:
    require(0.0 < delta < 1.0, "delta must be between 0 and 1", delta)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε for which a μ-GDP mechanism is (ε, δ)-DP."""
    require(mu >= 0.0 and isfinite(mu), "mu must be a finite number from 0", mu)
    _check_delta(delta)

    def excess(epsilon: float) -> float:
        return max(log_delta(epsilon, mu), _TINY) - log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-14))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ that (ε, δ) allows."""
    require(epsilon >= 0.0 and isfinite(epsilon), "epsilon must be a finite number from 0", epsilon)
    _check_delta(delta)

    def excess(log_mu: float) -> float:
        return max(log_delta(epsilon, exp(log_mu)), _TINY) - log(delta)

    low = high = 0.0
    while excess(low) > 0.0:
        low -= 2.0
    while excess(high) < 0.0:
        high += 2.0
    return exp(float(brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))


def compose(costs: Iterable[float]) -> float:
    """μ of several releases of the same data: √Σμ², adaptively chosen or not."""
    return hypot(0.0, *costs)
