"""Messages of one model for all: a server's released sums up, the others' down."""

from __future__ import annotations

from collections.abc import Sequence

from fclub.protocol.messages import Count, Decoder, Message, Part, PhaseStart


class Sums(Message, frozen=True, array_like=True, tag="sums"):
    """All that a server has released so far, and the variance of the noise in each entry."""

    cluster: bytes
    statistics: bytes
    noise: float

    def count(self) -> Count:
        return Count(uploads=1)

    def parts(self) -> Sequence[Part]:
        return (self,)


class Others(Message, frozen=True, array_like=True, tag="others"):
    """The same of all other servers together, and how many of them have released anything."""

    statistics: bytes
    noise: float
    servers: int

    def count(self) -> Count:
        return Count(downloads=1)


decode = Decoder(Sums, Others, PhaseStart)
