"""The table of families. A new one is a package beside `paper` and `plus`, and a row here."""

from __future__ import annotations

from collections.abc import Mapping

from fclub.config import Parameter
from fclub.errors import UnknownName
from fclub.protocol.paper.family import PRESETS as PAPER
from fclub.protocol.plus.family import PRESETS as PLUS
from fclub.protocol.pooled.family import PRESETS as POOLED
from fclub.protocol.seam import Family, Preset, Shape
from fclub.values import check_parameters

PRESETS: dict[str, Preset] = {
    **PAPER,
    **PLUS,
    **POOLED,
}
"""Policies with servers that talk to each other, by name."""


def make_family(name: str, shape: Shape, parameters: Mapping[str, Parameter]) -> Family:
    """The family behind a name at its tuned constants; what is unknown or impossible is refused."""
    if name not in PRESETS:
        raise UnknownName("policy", name, PRESETS)
    preset = PRESETS[name]
    defaults = {**preset.defaults, **preset.tuned}
    return preset.check(check_parameters(name, parameters, defaults)).family(shape)
