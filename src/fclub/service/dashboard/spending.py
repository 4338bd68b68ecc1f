"""What releases cost against the claimed budget, in the numbers that the pages show."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Any

from fclub.privacy.calibration import REPORTED_DELTA, epsilon_of, mu_of
from fclub.protocol.seam import Family


class Spending:
    """What local servers can have spent at most, as far as the global server can tell."""

    def __init__(self, family: Family) -> None:
        self.privacy, self.price = family.privacy, family.price()

    def state(self, phases: int) -> dict[str, Any] | None:
        """After so many phases; None where exact statistics leave."""
        if self.privacy is None or self.price is None:
            return None
        claimed, again = (self.privacy.epsilon, self.privacy.delta), self.price.phases_add_up
        times = phases if again else min(phases, 1)
        return {
            "claimed": list(claimed),
            "phases": phases if again else None,
            "stream": cost(self.price.stream, *claimed),
            "server": cost(self.price.stream * sqrt(times), *claimed),
        }


@lru_cache(maxsize=1024)
def cost(mu: float, epsilon: float, delta: float) -> dict[str, float]:
    """ε at the claimed δ and at 10⁻⁵, and the share of the budget: costs add up by their squares."""
    return {
        "epsilon": epsilon_of(mu, delta),
        "reported": epsilon_of(mu, REPORTED_DELTA),
        "share": (mu / mu_of(epsilon, delta)) ** 2,
    }
