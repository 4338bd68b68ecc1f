"""The table of families. A new one is a package beside `paper` and `plus`, and a row here."""

from __future__ import annotations

from collections.abc import Mapping

from fclub.errors import UnknownName
from fclub.parameters import Parameter
from fclub.protocol.plus.private import ROWS as PLUS
from fclub.protocol.rows.paper import ROWS as PAPER
from fclub.protocol.rows.pooled import ROWS as POOLED
from fclub.protocol.seam import Constants, Family, Shape

FAMILIES: dict[str, type[Constants]] = {row.name: row for row in (*PAPER, *PLUS, *POOLED)}
"""Policies with servers that talk to each other, by name."""


def make_family(name: str, shape: Shape, parameters: Mapping[str, Parameter]) -> Family:
    """The family behind a name at its tuned constants; what is unknown or impossible is refused."""
    if name not in FAMILIES:
        raise UnknownName("policy", name, FAMILIES)
    return FAMILIES[name](**parameters).make_family(shape)
