"""What servers refuse of digests and shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isnan, sqrt
from typing import Protocol

from fclub.core.kernels import log_determinant
from fclub.core.types import Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.messages import ROUNDING, check_named, check_statistics
from fclub.protocol.plus.messages import ReleasedSums


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


def check_digest(present: Collection[int], news: Mapping[int, ReleasedSums], rules: Limits) -> None:
    """All clusters of a server, and what it has released of some of them."""
    check_named(present, "digest")
    for released in news.values():
        check_released(released, rules)


def check_share(released: ReleasedSums, clusters: int, rules: Limits) -> None:
    """What this number of local clusters of other servers have released."""
    if clusters < 1:
        raise InvalidMessage(f"a share of {clusters} clusters")
    check_released(released, rules)


def check_released(released: ReleasedSums, rules: Limits) -> None:
    """Check sums of released statistics, and the noise that is stated for them."""
    statistics, noise, _ = released
    most = rules.most_noise * statistics.count
    if not rules.least_noise * (1.0 - ROUNDING) <= noise <= most * (1.0 + ROUNDING):
        raise InvalidMessage(f"noise of variance {noise!r} in {statistics.count} observations")
    check_statistics(statistics, 0.0, sqrt(noise))
    information = statistics.gram / rules.variance
    if noise == 0.0 and isnan(log_determinant(rules.prior + information)):
        raise InvalidMessage("exact statistics are indefinite")
