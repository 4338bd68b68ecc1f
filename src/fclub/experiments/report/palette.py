"""How every policy looks in all plots: colours of Okabe and Ito, told apart by dashes as well.

Their yellow and black are left out: one is lost on white, the other on a dark page.
"""

from __future__ import annotations

from typing import NamedTuple

ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILION, PURPLE, GREY = "#D55E00", "#CC79A7", "#808080"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")


class Style(NamedTuple):
    """Names as plotly has them; `plots.py` translates. A hollow marker ends with -open."""

    colour: str
    dash: str = "solid"
    marker: str = "circle"


POLICY: dict[str, Style] = {
    "cdp-fclub-dc": Style(VERMILION),
    "fclub-dc": Style(BLUE, "solid", "square"),
    "fclub": Style(BLUE, "dash", "square-open"),
    "homo-dc": Style(GREY, "solid", "x"),
    "homo": Style(GREY, "dash", "circle-open"),
    "club": Style(GREEN, "solid", "diamond"),
    "sclub": Style(SKY, "solid", "triangle-up"),
    "linucb": Style(ORANGE, "solid", "cross"),
    "fclub-plus": Style(PURPLE, "dash", "star-open"),
    "cdp-fclub-plus": Style(PURPLE, "solid", "star"),
}


def style_of(policy: str, position: int = 0) -> Style:
    """A policy's own style, or one by its position among the lines for anything else."""
    turn = position // len(COLOURS)
    fallback = Style(
        COLOURS[position % len(COLOURS)],
        DASHES[turn % len(DASHES)],
        MARKERS[position % len(MARKERS)],
    )
    return POLICY.get(policy, fallback)
