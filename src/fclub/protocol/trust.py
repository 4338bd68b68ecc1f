"""What the global server refuses to believe, checked before anything is changed.

An honest message holds the outer products of `count` feature vectors of norm at most 1, the shifts and
the noise of the mechanism. The allowance for noise is eight standard deviations, which an honest server
exceeds less than once in 10¹⁴ messages. Asymmetry, a wrong dimension and numbers that are not finite
are refused where bytes become statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isnan, log2, sqrt

import numpy as np

from fclub.core.kernels import largest_entry, log_determinant, trace
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import Statistics
from fclub.core.types import Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.mixture_rules import MixtureRules

MAX_COUNT = 10**9
MAX_CLUSTERS = 100_000
DEVIATIONS = 8.0
ROUNDING = 1e-6


def check_upload(statistics: Statistics, total: Matrix, rules: Rules) -> None:
    """An increment of a local cluster whose global cluster has the Gram matrix `total`."""
    nodes = 2.0 * (log2(rules.uploads + 1) + 2.0)
    _check(statistics, rules.upload_shift, rules.noise_std * sqrt(nodes))
    if isnan(log_determinant(total + statistics.gram)):
        raise InvalidMessage("an upload makes the statistics of its global cluster indefinite")


def check_report(
    phase: int, current: int, clusters: list[tuple[int, Statistics]], rules: Rules
) -> None:
    """All clusters of a server, in answer to a phase that has been announced."""
    if not 1 <= phase <= current:
        raise InvalidMessage(f"a report for phase {phase}, the current one is {current}")
    if not 1 <= len(clusters) <= MAX_CLUSTERS:
        raise InvalidMessage(f"a report of {len(clusters)} clusters")
    if len({cluster for cluster, _ in clusters}) != len(clusters):
        raise InvalidMessage("a report names a cluster twice")
    for _, statistics in clusters:
        _check(statistics, rules.report_shift, rules.noise_std)
        if isnan(log_determinant(statistics.gram)):
            raise InvalidMessage("reported statistics are indefinite")


def check_digest(
    present: Collection[int], news: Mapping[int, tuple[Statistics, float]], rules: MixtureRules
) -> None:
    """All clusters of a server of a mixture policy, and what it has released of some of them."""
    if len(present) > MAX_CLUSTERS:
        raise InvalidMessage(f"a digest of {len(present)} clusters")
    if len(set(present)) != len(present):
        raise InvalidMessage("a digest names a cluster twice")
    for statistics, noise in news.values():
        check_released(statistics, noise, rules)


def check_share(statistics: Statistics, noise: float, clusters: int, rules: MixtureRules) -> None:
    """What so many local clusters of other servers have released."""
    if clusters < 1:
        raise InvalidMessage(f"a share of {clusters} clusters")
    check_released(statistics, noise, rules)


def check_released(statistics: Statistics, noise: float, rules: MixtureRules) -> None:
    """Sums of released statistics, with noise that they can have."""
    most = rules.most_noise * statistics.count
    if not rules.least_noise * (1.0 - ROUNDING) <= noise <= most * (1.0 + ROUNDING):
        raise InvalidMessage(f"noise of variance {noise!r} in {statistics.count} observations")
    _check(statistics, 0.0, sqrt(noise))
    information = statistics.gram / rules.variance
    if noise == 0.0 and isnan(log_determinant(rules.prior + information)):
        raise InvalidMessage("exact statistics are indefinite")


def _check(statistics: Statistics, shift: float, std: float) -> None:
    """Count, entries, trace and moment of observations from the unit ball, with rewards in [0, 1]."""
    count, d = statistics.count, statistics.dim
    if not 0 <= count <= MAX_COUNT:
        raise InvalidMessage(f"statistics count {count} observations")
    noise = DEVIATIONS * std * sqrt(2.0 * d)
    slack = ROUNDING * (1.0 + count)
    if largest_entry(statistics.gram) > count + shift + noise + slack:
        raise InvalidMessage(f"an entry beyond its {count} observations")
    if largest_entry(statistics.moment.reshape(1, -1)) > count + noise + slack:
        raise InvalidMessage(f"a moment beyond its {count} observations")
    excess = trace(statistics.gram) - d * shift
    if not -noise - slack <= excess <= count + noise + slack:
        raise InvalidMessage(f"a trace of {excess:.6g} from {count} observations")
    if std == 0.0 and isnan(log_determinant(statistics.gram + slack * np.eye(d))):
        raise InvalidMessage("exact statistics are indefinite")
