"""What servers say to each other, and how it is written as bytes.

Only statistics of clusters, under ids that mean nothing outside their server. Who sends is known to
the link, not claimed by the message. Statistics are written as the upper triangle, so an asymmetric
matrix cannot even be expressed, and with a fixed width, so that size tells nothing.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from math import inf

import msgspec
import numpy as np

from fclub.core.statistics import Statistics
from fclub.core.types import Indices
from fclub.errors import InvalidMessage

VERSION = 1
ID_BYTES = 8


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


class Upload(msgspec.Struct, frozen=True, array_like=True, tag="upload"):
    """Alg. 3: an increment (ΔS, Δu, ΔT) of a local cluster."""

    cluster: bytes
    statistics: bytes


class Download(msgspec.Struct, frozen=True, array_like=True, tag="download"):
    """Alg. 4: what other members of its global cluster have uploaded."""

    cluster: bytes
    statistics: bytes


class PhaseStart(msgspec.Struct, frozen=True, array_like=True, tag="phase"):
    """The global server asks for a report."""

    phase: int


class News(msgspec.Struct, frozen=True, array_like=True):
    """What a local cluster has released so far, and the variance of the noise in each entry."""

    cluster: bytes
    statistics: bytes
    noise: float


class Digest(msgspec.Struct, frozen=True, array_like=True, tag="digest"):
    """A server's clusters as the mixture policies report them: all ids, statistics where changed."""

    phase: int
    present: tuple[bytes, ...]
    news: tuple[News, ...]


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What other servers have released of a global cluster, from so many of their local clusters."""

    number: int
    statistics: bytes
    noise: float
    clusters: int


class Shares(msgspec.Struct, frozen=True, array_like=True, tag="shares"):
    """The answer to digests: the global cluster of each reported cluster, and others' statistics.

    `present` numbers all shares that are valid now, `news` brings those that were not sent before.
    `gamma` is the prior mass of a global cluster that nobody has seen.
    """

    phase: int
    groups: tuple[tuple[bytes, int], ...]
    present: tuple[int, ...]
    news: tuple[Share, ...]
    gamma: float


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """Alg. 2, line 5: all local clusters of a server."""

    phase: int
    clusters: tuple[ClusterStatistics, ...]


class Plan(msgspec.Struct, frozen=True, array_like=True, tag="plan"):
    """Alg. 2, lines 8–16: the outcome of the merge; without `renew` everything stays as it was."""

    phase: int
    renew: bool
    clusters: tuple[ClusterPlan, ...]


Message = Upload | Download | PhaseStart | Report | Plan | Digest | Shares


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    version: int
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Envelope)


def encode(message: Message) -> bytes:
    """The bytes of a message, with the format's version."""
    return _encoder.encode(_Envelope(VERSION, message))


def decode(data: bytes) -> Message:
    """The message that these bytes hold, or `InvalidMessage`."""
    try:
        envelope = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"not a message: {error}") from None
    if envelope.version != VERSION:
        raise InvalidMessage(f"message version {envelope.version}, expected {VERSION}")
    return envelope.message


def write_id(number: int) -> bytes:
    """A cluster's serial number as opaque bytes of fixed length."""
    return number.to_bytes(ID_BYTES, "big")


def read_id(data: bytes) -> int:
    if len(data) != ID_BYTES:
        raise InvalidMessage(f"cluster id has {len(data)} bytes, expected {ID_BYTES}")
    return int.from_bytes(data, "big")


@lru_cache(maxsize=64)
def _triangle(dim: int) -> tuple[Indices, Indices]:
    rows, columns = np.triu_indices(dim)
    return rows, columns


@lru_cache(maxsize=64)
def _places(dim: int) -> Indices:
    """Where in the triangle each entry of the symmetric matrix is."""
    rows, columns = _triangle(dim)
    places = np.empty((dim, dim), dtype=np.int64)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    return places


def write_statistics(statistics: Statistics) -> bytes:
    """Count, upper triangle of the Gram matrix, moment: 8 bytes each, little-endian."""
    rows, columns = _triangle(statistics.dim)
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
    rows, _ = _triangle(dim)
    expected = 8 * (1 + len(rows) + dim)
    if len(data) != expected:
        raise InvalidMessage(f"statistics have {len(data)} bytes, expected {expected} for d={dim}")
    (count,) = struct.unpack_from("<q", data)
    values = np.frombuffer(data, dtype="<f8", offset=8).astype(np.float64)
    if not np.isfinite(values).all():
        raise InvalidMessage("statistics are not finite")
    return Statistics(values[_places(dim)], values[len(rows) :], count)


def read_released(data: bytes, noise: float, dim: int) -> tuple[Statistics, float]:
    """Statistics that someone has released, and the variance of the noise in each entry."""
    statistics = read_statistics(data, dim)
    if statistics.count < 0 or not 0.0 <= noise < inf:
        raise InvalidMessage(f"{statistics.count} observations with noise {noise!r} make no sense")
    return statistics, noise


def read_count(data: bytes) -> int:
    """Only the count of what `write_statistics` wrote."""
    return int(struct.unpack_from("<q", data)[0])


@lru_cache(maxsize=64)
def event_size(dim: int) -> tuple[int, int]:
    """Bytes of any upload and of any download in dimension d."""
    cluster, statistics = write_id(0), write_statistics(Statistics.zeros(dim))
    return len(encode(Upload(cluster, statistics))), len(encode(Download(cluster, statistics)))
