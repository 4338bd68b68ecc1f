"""From a budget to everything a stream needs: mechanism, schedule, deviation of each entry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fclub.core.types import Counts, Matrix
from fclub.privacy.calibration import mu_of
from fclub.privacy.mechanisms import Mechanism, calibrate, count_schedule
from fclub.privacy.sensitivity import Domain, entry_std, sensitivity


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Streams over a domain that each cost exactly μ, whatever part of their schedule they use."""

    domain: Domain
    mu: float
    sensitivity: float
    mechanism: Mechanism
    schedule: Counts

    def entry_std(self, dim: int) -> Matrix:
        """What `privatize_increment` scales its noise with."""
        return entry_std(self.domain, dim, self.mechanism.std)

    @property
    def last_std(self) -> float:
        """Deviation of an entry of the last prefix sum."""
        last = self.mechanism.factor(len(self.schedule))[-1]
        return self.mechanism.std * float(np.linalg.norm(last))


def plan_stream(
    epsilon: float,
    delta: float,
    domain: Domain,
    mechanism: str = "increments",
    first: int = 16,
    ratio: float = 2.0,
) -> StreamPlan:
    """Calibrate a mechanism on a count schedule so that a whole stream costs exactly (ε, δ)."""
    mu, distance, schedule = mu_of(epsilon, delta), sensitivity(domain), count_schedule(first, ratio)
    noise = calibrate(mechanism, mu, distance, len(schedule))
    return StreamPlan(domain, mu, distance, noise, schedule)
