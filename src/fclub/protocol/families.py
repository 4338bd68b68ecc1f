"""The table of families, and learners of other packages, which are found by entry point.

A new family of this package is a row here. Another package registers a subclass of
`fclub.protocol.rows.exact.ExactRow` in the group `fclub.learners`, by its name:

    [project.entry-points."fclub.learners"]
    my-learner = "my_package:MyLearner"
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from fclub.errors import InvalidSetting, UnknownName
from fclub.parameters import Parameter
from fclub.protocol.interfaces.family import Constants, Family, Shape
from fclub.protocol.rows.exact import ExactRow
from fclub.protocol.rows.paper import ROWS as PAPER
from fclub.protocol.rows.pooled import ROWS as POOLED
from fclub.protocol.rows.private import ROWS as PLUS

GROUP = "fclub.learners"


class Families(dict[str, type[Constants]]):
    """Rows by name. One iterates over those of this package; others are loaded when they are named."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(_registered(name))

    def __missing__(self, name: str) -> type[Constants]:
        found = _registered(name)
        if not found:
            raise UnknownName("policy", name, [*self, *(one.name for one in _registered())])
        return _load(name, found)


def _registered(name: object = None) -> list[EntryPoint]:
    """Entry points of that name, or all."""
    return [one for one in entry_points(group=GROUP) if name in (None, one.name)]


def _load(name: str, found: list[EntryPoint]) -> type[Constants]:
    places = sorted({one.value for one in found})
    if len(places) > 1:
        raise InvalidSetting(f"several packages register the learner {name}: {', '.join(places)}", name)
    row = found[0].load()
    if not (isinstance(row, type) and issubclass(row, ExactRow)) or row.name != name:
        raise InvalidSetting(f"{places[0]} is no ExactRow with the name {name}", name)
    if missing := sorted(row.__abstractmethods__):
        raise InvalidSetting(f"{places[0]} lacks {', '.join(missing)}", name)
    return row


FAMILIES = Families({row.name: row for row in (*PAPER, *PLUS, *POOLED)})
"""Policies with servers that talk to each other, by name."""


def make_family(name: str, shape: Shape, parameters: Mapping[str, Parameter]) -> Family:
    """The family behind a name at its tuned constants; what is unknown or impossible is refused."""
    return FAMILIES[name](**parameters).make_family(shape)
