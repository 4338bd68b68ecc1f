"""Messages of the plus policies: digests up, shares down; and what servers refuse of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fclub.protocol.messages import Count, Decoder, Message, Part, PhaseStart
from fclub.protocol.plus.split_messages import TypeDigest, TypeNews


class News(msgspec.Struct, frozen=True, array_like=True):
    """What was released of a user so far, and the variance of the noise in each entry."""

    cluster: bytes
    statistics: bytes
    noise: float


class Digest(Message, frozen=True, array_like=True, tag="digest"):
    """A server's streams: all numbers, statistics where they have changed."""

    phase: int
    present: tuple[bytes, ...]
    news: tuple[News, ...]

    def count(self) -> Count:
        return Count(phases=len(self.news))

    def parts(self) -> Sequence[Part]:
        return self.news


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What was released of a user of another server."""

    number: int
    statistics: bytes
    noise: float


class Shares(Message, frozen=True, array_like=True, tag="shares"):
    """The answer to digests: what was released of the users of so many other `servers`.

    `present` numbers all shares that are valid now, `news` brings those that were not sent before.
    """

    phase: int
    servers: int
    present: tuple[int, ...]
    news: tuple[Share, ...]

    def count(self) -> Count:
        return Count(phases=len(self.news))


decode = Decoder(Digest, Shares, TypeDigest, TypeNews, PhaseStart)
