"""Messages of Algorithms 2 to 4, and what the global server refuses of uploads and reports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isnan, log2, sqrt

import msgspec

from fclub.core.kernels import log_determinant
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import Statistics
from fclub.core.types import Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.messages import (
    Count,
    Decoder,
    Message,
    Part,
    PhaseStart,
    check_named,
    check_statistics,
    encode,
    write_id,
    write_statistics,
)


class ClusterStatistics(msgspec.Struct, frozen=True, array_like=True):
    """Released statistics of one local cluster."""

    cluster: bytes
    statistics: bytes


class ClusterPlan(msgspec.Struct, frozen=True, array_like=True):
    """What a local cluster starts a phase from: S^g, u^g, T^g of `group`, shared by L′ = `sharing`."""

    cluster: bytes
    statistics: bytes
    sharing: int
    group: int


class Upload(Message, frozen=True, array_like=True, tag="upload"):
    """Alg. 3: an increment (ΔS, Δu, ΔT) of a local cluster."""

    cluster: bytes
    statistics: bytes

    def count(self) -> Count:
        return Count(uploads=1)

    def parts(self) -> Sequence[Part]:
        return (self,)


class Download(Message, frozen=True, array_like=True, tag="download"):
    """Alg. 4: what other members of its global cluster have uploaded."""

    cluster: bytes
    statistics: bytes

    def count(self) -> Count:
        return Count(downloads=1)


class Report(Message, frozen=True, array_like=True, tag="report"):
    """Alg. 2, line 5: all local clusters of a server."""

    phase: int
    clusters: tuple[ClusterStatistics, ...]

    def count(self) -> Count:
        return Count(phases=len(self.clusters))

    def parts(self) -> Sequence[Part]:
        return self.clusters


class Plan(Message, frozen=True, array_like=True, tag="plan"):
    """Alg. 2, lines 8–16: the outcome of the merge; without `renew` everything stays as it was."""

    phase: int
    renew: bool
    clusters: tuple[ClusterPlan, ...]

    def count(self) -> Count:
        return Count(phases=len(self.clusters))


decode = Decoder(Upload, Download, PhaseStart, Report, Plan)


@lru_cache(maxsize=64)
def event_size(dim: int) -> tuple[int, int]:
    """Bytes of any upload and of any download in dimension d."""
    cluster, statistics = write_id(0), write_statistics(Statistics.zeros(dim))
    return len(encode(Upload(cluster, statistics))), len(encode(Download(cluster, statistics)))


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
