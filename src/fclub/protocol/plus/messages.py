"""Messages of the plus policies: digests up, shares down."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from fclub.core.statistics import Statistics
from fclub.errors import InvalidMessage
from fclub.protocol.messages import Count, Decoder, Message, Part, PhaseStart, read_statistics
from fclub.protocol.plus.release_messages import Release, Released
from fclub.protocol.plus.type_messages import TypeDigest, TypeNews


class News(msgspec.Struct, frozen=True, array_like=True):
    """What a local cluster has released so far, and the variance of the noise in each entry."""

    cluster: bytes
    statistics: bytes
    noise: float


class Digest(Message, frozen=True, array_like=True, tag="digest"):
    """A server's clusters: all ids, statistics where they have changed."""

    phase: int
    present: tuple[bytes, ...]
    news: tuple[News, ...]

    def count(self) -> Count:
        return Count(phases=len(self.news))

    def parts(self) -> Sequence[Part]:
        return self.news


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What other servers have released of a global cluster, and from how many local clusters."""

    number: int
    statistics: bytes
    noise: float
    clusters: int


class Shares(Message, frozen=True, array_like=True, tag="shares"):
    """The answer to digests: the global cluster of each reported cluster, and others' statistics.

    `present` numbers all shares that are valid now, `news` brings those that were not sent before.
    `gamma` is the prior mass of a global cluster that no server has seen.
    """

    phase: int
    groups: tuple[tuple[bytes, int], ...]
    present: tuple[int, ...]
    news: tuple[Share, ...]
    gamma: float

    def count(self) -> Count:
        return Count(phases=len(self.news))


decode = Decoder(Digest, Shares, TypeDigest, TypeNews, Release, Released, PhaseStart)


def read_released(data: bytes, noise: float, dim: int) -> tuple[Statistics, float]:
    """Statistics that someone has released, and the variance of the noise in each entry."""
    statistics = read_statistics(data, dim)
    if statistics.count < 0 or not 0.0 <= noise < inf:
        raise InvalidMessage(f"{statistics.count} observations with noise {noise!r} make no sense")
    return statistics, noise
