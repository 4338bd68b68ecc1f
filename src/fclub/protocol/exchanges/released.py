"""Statistics that somebody says to have released: how they are read, and what is refused of them."""

from __future__ import annotations

from math import inf, isnan, sqrt
from typing import NamedTuple, Protocol

from fclub.core.kernels import log_determinant
from fclub.core.statistics import Statistics
from fclub.core.types import Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.messages import ROUNDING, check_statistics, read_statistics


class ReleasedSums(NamedTuple):
    """Statistics that someone has released; `noise` is the variance in every entry."""

    statistics: Statistics
    noise: float


def read_released(statistics: bytes, noise: float, dim: int) -> ReleasedSums:
    """What an entry of a message says that someone has released."""
    read = read_statistics(statistics, dim)
    if read.count < 0 or not 0.0 <= noise < inf:
        raise InvalidMessage(f"{read.count} observations with noise {noise!r} make no sense")
    return ReleasedSums(read, noise)


class Limits(Protocol):
    """What releases may look like: prior precision, variance of a reward, and of the noise."""

    @property
    def prior(self) -> Matrix: ...

    @property
    def variance(self) -> float: ...

    @property
    def least_noise(self) -> float: ...

    @property
    def most_noise(self) -> float: ...


def check_share(released: ReleasedSums, clusters: int, rules: Limits) -> None:
    """What this number of local clusters of other servers have released."""
    if clusters < 1:
        raise InvalidMessage(f"a share of {clusters} clusters")
    check_released(released, rules)


def check_released(released: ReleasedSums, rules: Limits) -> None:
    """Check sums of released statistics, and the noise that is stated for them."""
    statistics, noise = released
    most = rules.most_noise * statistics.count
    if not rules.least_noise * (1.0 - ROUNDING) <= noise <= most * (1.0 + ROUNDING):
        raise InvalidMessage(f"noise of variance {noise!r} in {statistics.count} observations")
    check_statistics(statistics, 0.0, sqrt(noise))
    information = statistics.gram / rules.variance
    if noise == 0.0 and isnan(log_determinant(rules.prior + information)):
        raise InvalidMessage("exact statistics are indefinite")
