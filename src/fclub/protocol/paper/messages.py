"""Messages of Algorithms 2 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from fclub.core.statistics import Statistics
from fclub.protocol.messages import (
    Count,
    Decoder,
    Message,
    Part,
    PhaseStart,
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
