"""Constants that the servers of one model for all agree on."""

from __future__ import annotations

from dataclasses import dataclass

from fclub.core.types import Matrix


@dataclass(frozen=True)
class PooledRules:
    """Prior precision of the one vector and variance of a reward.

    `released_only` serves users from released data only. Released statistics carry noise of variance at
    least `least_noise`, and at most `most_noise` for each of their observations.
    """

    prior: Matrix
    variance: float
    released_only: bool
    least_noise: float
    most_noise: float

    @property
    def dim(self) -> int:
        return len(self.prior)
