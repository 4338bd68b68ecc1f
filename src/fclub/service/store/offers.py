"""What was on offer when a decision was made, as it is stored with the decision.

An offer is written in the shortest way: the whole catalogue by its version and what was left out of it,
a part of the catalogue by ids, and items of the application's own with their features.
"""

from __future__ import annotations

import msgspec


class Whole(msgspec.Struct, tag="w", array_like=True, frozen=True):
    """All of the catalogue but these."""

    without: list[str]


class Part(msgspec.Struct, tag="p", array_like=True, frozen=True):
    """These items of the catalogue."""

    ids: list[str]


class Own(msgspec.Struct, tag="o", array_like=True, frozen=True):
    """Items that came with the request; `features` are their rows, one after the other."""

    ids: list[str]
    features: bytes


encode_offer = msgspec.msgpack.Encoder().encode
decode_offer = msgspec.msgpack.Decoder(Whole | Part | Own).decode
