"""What servers take for streams of users."""

from __future__ import annotations

from dataclasses import dataclass

from fclub.core.types import Matrix


@dataclass(frozen=True)
class StreamLimits:
    """`variance` of a reward and prior precision, and what noise there may be.

    Released statistics carry noise of variance at least `least_noise`, and at most `most_noise` for
    each of their observations.
    """

    prior: Matrix
    variance: float
    least_noise: float
    most_noise: float
