"""The kinds of figures: how each is drawn, and what is claimed about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from fclub.experiments.report import claims, drawing
from fclub.experiments.report.charts import Drawn
from fclub.experiments.report.measured import Measured
from fclub.experiments.report.verdicts import OPEN, Claim
from fclub.experiments.study.study import Figure


class Kind(NamedTuple):
    """From a figure and its measurements to charts and tables, and to claims."""

    draw: Callable[[Figure, list[Measured]], Drawn]
    claims: Callable[[Figure, list[Measured]], Iterator[Claim]]


KINDS = {
    "comparison": Kind(drawing.comparison, claims.comparison),
    "communication": Kind(drawing.communication, claims.communication),
    "runtime": Kind(drawing.runtime, claims.runtime),
    "sweep": Kind(drawing.sweep, claims.sweep),
    "privacy": Kind(drawing.privacy, claims.privacy),
    "tradeoff": Kind(drawing.tradeoff, claims.tradeoff),
    "bounds": Kind(drawing.bounds, claims.bounds),
    "clusters": Kind(drawing.clusters, claims.clusters),
}


def show(figure: Figure, measured: list[Measured]) -> tuple[Drawn, list[Claim]]:
    """Everything that a figure's kind makes of its measurements; nothing without any.

    One seed says nothing about another one, so a figure of one seed settles no claim.
    """
    if not measured:
        return Drawn(), []
    kind = KINDS[figure.kind]
    found = [replace(claim, figure=figure.name) for claim in kind.claims(figure, measured)]
    if min(len(m.panel.experiment.seeds) for m in measured) < 2:
        found = [replace(claim, verdict=OPEN) for claim in found]
    return kind.draw(figure, measured), found
