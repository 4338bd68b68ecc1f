"""Messages of the plus policies: digests up, shares down; and what servers refuse of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from fclub.protocol.exchanges.released import Limits, ReleasedSums, check_released
from fclub.protocol.messages import (
    Count,
    Decoder,
    Message,
    Part,
    PhaseStart,
    check_named,
)
from fclub.protocol.plus.split_messages import TypeDigest, TypeNews
from fclub.protocol.plus.type_messages import Release, Released


class News(msgspec.Struct, frozen=True, array_like=True):
    """What a local cluster has released so far, and the variance of the noise in each entry.

    `people` is (Σn)²/Σn² over the released counts n of its users: how many users of equal counts say as
    much of what they have in common.
    """

    cluster: bytes
    statistics: bytes
    noise: float
    people: float = 1.0


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
    """What other servers have released of a global cluster, and from how many local clusters.

    `people` is that of `News`, over all users of those clusters.
    """

    number: int
    statistics: bytes
    noise: float
    clusters: int
    people: float = 1.0


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


def check_digest(present: Collection[int], news: Mapping[int, ReleasedSums], rules: Limits) -> None:
    """All clusters of a server, and what it has released of some of them."""
    check_named(present, "digest")
    for released in news.values():
        check_released(released, rules)
