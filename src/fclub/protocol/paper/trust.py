"""What the global server refuses of uploads and reports."""

from __future__ import annotations

from math import isnan, log2, sqrt

from fclub.core.kernels import log_determinant
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import Statistics
from fclub.core.types import Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.trust import check_named, check_statistics


def check_upload(statistics: Statistics, total: Matrix, rules: Rules) -> None:
    """An increment of a local cluster whose global cluster has the Gram matrix `total`."""
    nodes = 2.0 * (log2(rules.uploads + 1) + 2.0)
    check_statistics(statistics, rules.upload_shift, rules.noise_std * sqrt(nodes))
    if isnan(log_determinant(total + statistics.gram)):
        raise InvalidMessage("an upload makes the statistics of its global cluster indefinite")


def check_report(
    phase: int, current: int, clusters: list[tuple[int, Statistics]], rules: Rules
) -> None:
    """All clusters of a server, in answer to a phase that has been announced."""
    if not 1 <= phase <= current:
        raise InvalidMessage(f"a report for phase {phase}, the current one is {current}")
    if not clusters:
        raise InvalidMessage("a report of 0 clusters")
    check_named([cluster for cluster, _ in clusters], "report")
    for _, statistics in clusters:
        check_statistics(statistics, rules.report_shift, rules.noise_std)
        if isnan(log_determinant(statistics.gram)):
            raise InvalidMessage("reported statistics are indefinite")
