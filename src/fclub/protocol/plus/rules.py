"""Constants that the servers of the plus policies agree on."""

from __future__ import annotations

from dataclasses import dataclass

from fclub.core.types import Matrix


@dataclass(frozen=True)
class PlusRules:
    """Constants of the mixture: `variance` of a reward, prior precision, Gibbs sweeps.

    `share` off makes a server that reports nothing. `separate` reports every user as a cluster of its
    own, so that the partition tells nothing. Released statistics carry noise of variance at least
    `least_noise`, and at most `most_noise` for each of their observations. A server with more users
    than `few` learns `types` instead of clusters.
    """

    prior: Matrix
    variance: float
    sweeps: int
    share: bool = True
    separate: bool = False
    least_noise: float = 0.0
    most_noise: float = 0.0
    few: int = 64
    types: int = 20

    @property
    def dim(self) -> int:
        return len(self.prior)
