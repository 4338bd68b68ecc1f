"""What noise a budget asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fclub.errors import UnknownName
from fclub.privacy.calibration import REPORTED_DELTA, epsilon_of, mu_of
from fclub.privacy.mechanisms import MECHANISMS, count_schedule
from fclub.privacy.sensitivity import Domain, sensitivity


@dataclass(frozen=True)
class Quote:
    """The noise of one stream: `std` of an independent draw, `last_std` of the last prefix sum."""

    mechanism: str
    mu: float
    epsilon: float
    delta: float
    epsilon_at_reported: float
    sensitivity: float
    releases: int
    std: float
    last_std: float


def quote(
    epsilon: float, delta: float, domain: Domain, mechanism: str, first: int, ratio: float
) -> Quote:
    """Calibrate a mechanism on a count schedule so that a whole stream costs exactly (ε, δ)."""
    if mechanism not in MECHANISMS:
        raise UnknownName("mechanism", mechanism, MECHANISMS)
    mu, distance = mu_of(epsilon, delta), sensitivity(domain)
    releases = len(count_schedule(first, ratio))
    kind = MECHANISMS[mechanism]
    std = distance * kind(releases, 1.0).charged(releases) / mu
    last = float(np.linalg.norm(kind(releases, std).factor(releases)[-1]))
    at_reported = epsilon_of(mu, REPORTED_DELTA)
    return Quote(mechanism, mu, epsilon, delta, at_reported, distance, releases, std, std * last)
