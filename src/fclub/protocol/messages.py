"""What servers say to each other, and how it is written as bytes.

Only statistics of clusters, under ids that mean nothing outside their server. Who sends is known to
the link, not claimed by the message. Statistics are written as the upper triangle, so an asymmetric
matrix cannot even be expressed, and with a fixed width, so that size tells nothing.

Each exchange has messages of its own and reads no others.

A server does not believe everything, and checks before anything is changed. An honest message holds the
outer products of `count` feature vectors of norm at most 1, the shifts and the noise of the mechanism.
The allowance for noise is eight standard deviations, which an honest server exceeds less than once in
10¹⁴ messages. Asymmetry, a wrong dimension and numbers that are not finite are refused where bytes
become statistics. Each exchange checks its own messages with what is here.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from math import isnan, sqrt
from typing import Any, NamedTuple, Protocol, Union

import msgspec
import numpy as np

from fclub.core.kernels import largest_entry, log_determinant, trace
from fclub.core.lattice import GRID, is_whole
from fclub.core.packing import places_of, triangle_of
from fclub.core.statistics import Statistics
from fclub.errors import InvalidMessage

VERSION = 1
ID_BYTES = 8


class Part(Protocol):
    """Statistics of one local cluster inside a message."""

    @property
    def cluster(self) -> bytes: ...

    @property
    def statistics(self) -> bytes: ...


class Count(NamedTuple):
    """What a message adds to C(T)."""

    uploads: int = 0
    downloads: int = 0
    phases: int = 0


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What all messages can tell of themselves."""

    def count(self) -> Count:
        """What it counts as."""
        return Count()

    def parts(self) -> Sequence[Part]:
        """The statistics that leave their local server with it."""
        return ()


class PhaseStart(Message, frozen=True, array_like=True, tag="phase"):
    """The global server asks for a report."""

    phase: int


_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The bytes of a message, with the format's version."""
    return _encoder.encode((VERSION, message))


class Decoder:
    """Reads messages of these kinds and no others."""

    def __init__(self, *kinds: type[Message]) -> None:
        union: Any = Union[kinds]  # noqa: UP007 - the kinds are known at run time only
        self._decoder = msgspec.msgpack.Decoder(tuple[int, union])

    def __call__(self, data: bytes) -> Message:
        """The message that these bytes hold, or `InvalidMessage`."""
        try:
            version, message = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidMessage(f"not a message: {error}") from None
        if version != VERSION:
            raise InvalidMessage(f"message version {version}, expected {VERSION}")
        found: Message = message
        return found


def write_id(number: int) -> bytes:
    """A cluster's serial number as opaque bytes of fixed length."""
    return number.to_bytes(ID_BYTES, "big")


def read_id(data: bytes) -> int:
    if len(data) != ID_BYTES:
        raise InvalidMessage(f"cluster id has {len(data)} bytes, expected {ID_BYTES}")
    return int.from_bytes(data, "big")


def write_statistics(statistics: Statistics) -> bytes:
    """Count, upper triangle of the Gram matrix, moment: 8 bytes each, little-endian."""
    rows, columns = triangle_of(statistics.dim)
    return b"".join(
        (
            struct.pack("<q", statistics.count),
            statistics.gram[rows, columns].astype("<f8").tobytes(),
            statistics.moment.astype("<f8").tobytes(),
        )
    )


def read_statistics(data: bytes, dim: int) -> Statistics:
    """The inverse of `write_statistics`; refuses a wrong length and numbers that are not finite.

    The count has a sign: a download that corrects a cluster after a late report may take away.
    """
    rows, _ = triangle_of(dim)
    expected = 8 * (1 + len(rows) + dim)
    if len(data) != expected:
        raise InvalidMessage(f"statistics have {len(data)} bytes, expected {expected} for d={dim}")
    (count,) = struct.unpack_from("<q", data)
    values = np.frombuffer(data, dtype="<f8", offset=8).astype(np.float64)
    if not np.isfinite(values).all():
        raise InvalidMessage("statistics are not finite")
    return Statistics(values[places_of(dim)], values[len(rows) :], count)


def read_count(data: bytes) -> int:
    """Only the count of what `write_statistics` wrote."""
    return int(struct.unpack_from("<q", data)[0])


MAX_COUNT = 10**9
MAX_CLUSTERS = 100_000
DEVIATIONS = 8.0
ROUNDING = 1e-6


def check_named(clusters: Collection[int], kind: str) -> None:
    """The clusters that a message of this kind names."""
    if len(clusters) > MAX_CLUSTERS:
        raise InvalidMessage(f"a {kind} of {len(clusters)} clusters")
    if len(set(clusters)) != len(clusters):
        raise InvalidMessage(f"a {kind} names a cluster twice")


def check_statistics(statistics: Statistics, shift: float, std: float) -> None:
    """Count, entries, trace and moment of observations from the unit ball, with rewards in [0, 1]."""
    count, d = statistics.count, statistics.dim
    if not 0 <= count <= MAX_COUNT:
        raise InvalidMessage(f"statistics count {count} observations")
    if std > 0.0 and not (is_whole(statistics.gram) and is_whole(statistics.moment)):
        raise InvalidMessage("released statistics that are not on the lattice")
    noise = DEVIATIONS * std * sqrt(2.0 * d)
    # On the grid a vector may be longer than 1 by √d·GRID/2.
    slack = (ROUNDING + 1.01 * sqrt(d) * GRID) * (1.0 + count)
    if largest_entry(statistics.gram) > count + shift + noise + slack:
        raise InvalidMessage(f"an entry beyond its {count} observations")
    if largest_entry(statistics.moment.reshape(1, -1)) > count + noise + slack:
        raise InvalidMessage(f"a moment beyond its {count} observations")
    excess = trace(statistics.gram) - d * shift
    if not -noise - slack <= excess <= count + noise + slack:
        raise InvalidMessage(f"a trace of {excess:.6g} from {count} observations")
    if std == 0.0 and isnan(log_determinant(statistics.gram + slack * np.eye(d))):
        raise InvalidMessage("exact statistics are indefinite")
