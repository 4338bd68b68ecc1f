"""Charts and tables as plain values: what is drawn, before anything is drawn.

Colours are those of Okabe and Ito, told apart by dashes as well. Their yellow and black are left out:
one is lost on white, the other on a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fclub.core.types import Floats
from fclub.experiments.report.measured import Curve, Measured
from fclub.experiments.report.tables import Cell, Table, Value

ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILION, PURPLE, GREY = "#D55E00", "#CC79A7", "#808080"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")


class Style(NamedTuple):
    """Names as plotly has them; a hollow marker ends with -open. `drawing.py` translates."""

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
    "cdp-homo": Style(GREY, "dot", "square"),
    "shrunk": Style(ORANGE, "dash", "cross-open"),
    "greedy": Style(ORANGE, "dot", "diamond"),
    "lin-ts": Style(ORANGE, "dashdot", "triangle-up"),
    "dis-linucb": Style(GREEN, "dash", "square"),
    "async-linucb": Style(GREEN, "dashdot", "circle"),
    "fed-linucb": Style(SKY, "dash", "cross"),
    "random": Style(GREY, "dashdot", "x-open"),
    "alone": Style(PURPLE, "dot", "circle-open"),
    "popular": Style(VERMILION, "dash", "circle-open"),
    "oracle-local": Style(SKY, "dot", "triangle-up-open"),
    "oracle-pooled": Style(BLUE, "dot", "diamond-open"),
    "oracle-types": Style(GREEN, "dot", "diamond-open"),
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


OFF_SCALE = 2.5
"""A linear chart ends at this multiple of linucb's regret, or of the median line's without linucb."""


@dataclass(frozen=True)
class Line:
    """Mean over x with its standard deviation; `marked` if its points matter, not only its course."""

    label: str
    x: Floats
    mean: Floats
    std: Floats | None
    style: Style
    marked: bool = False


@dataclass(frozen=True)
class Chart:
    """`limit` cuts the linear axis where a few lines would flatten all others."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    log_x: bool = False
    log_y: bool = False
    limit: float | None = None
    digits: int = 0
    note: str = ""

    @property
    def alt(self) -> str:
        """What a reader who cannot see the chart needs: its axes and where the lines end."""
        ends = ", ".join(f"{line.label} {line.mean[-1]:,.{self.digits}f}" for line in self.lines)
        return f"{self.title}: {self.y_label} against {self.x_label}. Right end: {ends}."

    @property
    def caption(self) -> str:
        """Bands, and which lines leave the linear axis."""
        bands = any(line.std is not None for line in self.lines)
        parts = ["Mean ± one standard deviation." if bands else "Means.", self.note]
        if self.limit is not None:
            out = [line for line in self.lines if float(line.mean[-1]) > self.limit]
            ends = ", ".join(f"{line.label} at {line.mean[-1]:,.0f}" for line in out)
            parts.append(f"Above the cut: {ends}." if out else "")
        return " ".join(part for part in parts if part)


@dataclass
class Drawn:
    """What a figure consists of."""

    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def line_of(label: str, curve: Curve, position: int = 0) -> Line:
    return Line(label, curve.t.astype(np.float64), curve.mean, curve.std, style_of(label, position))


def over_values(
    label: str, measured: Sequence[Measured], metric: str, style: Style | None = None
) -> Line:
    """A policy's totals at T against the value that the panels vary."""
    curves = [m.curve(label, metric) for m in measured]
    spreads = [curve.spread for curve in curves]
    std = None if None in spreads else np.array(spreads, dtype=np.float64)
    x = np.array([m.panel.value for m in measured], dtype=np.float64)
    mean = np.array([curve.end for curve in curves])
    return Line(label, x, mean, std, style or style_of(label), marked=True)


def regret_limit(lines: Sequence[Line]) -> float | None:
    """Where to cut a linear axis: nowhere if everything fits."""
    ends = {line.label: float(line.mean.max()) for line in lines}
    reference = ends.get("linucb", float(np.median(list(ends.values()))))
    return OFF_SCALE * reference if max(ends.values()) > 1.5 * OFF_SCALE * reference else None


def regret_chart(measured: Measured, name: str) -> Chart:
    """Cumulative regret of every policy over rounds."""
    lines = [
        line_of(label, measured.curve(label, "regret"), k) for k, label in enumerate(measured.labels)
    ]
    return Chart(
        name,
        f"Regret: {measured.panel.title}",
        "round t",
        "cumulative regret",
        lines,
        limit=regret_limit(lines),
    )


def visit_charts(measured: Measured, name: str) -> Iterator[Chart]:
    """What a user loses at its first, second, … visit; the same for newcomers, if there are any."""
    for metric, who in (("by_visit", "users"), ("newcomers_by_visit", "newcomers")):
        known = [label for label in measured.labels if metric in measured.curves[label]]
        lines = [line_of(label, measured.curve(label, metric), k) for k, label in enumerate(known)]
        if lines:
            yield Chart(
                f"{name}-{metric.replace('_', '-')}",
                f"Visit by visit, {who}: {measured.panel.title}",
                f"{who}' k-th visit",
                "mean regret of one visit",
                lines,
                digits=3,
            )


def value_of(curve: Curve, digits: int = 0) -> Value:
    return Value(curve.end, curve.spread, digits)


def result_table(measured: Measured, name: str) -> Table:
    """Everything about the end of a run, lowest regret first."""
    ranked = sorted(measured.labels, key=lambda label: measured.curve(label, "regret").end)
    cells: dict[str, Callable[[str], Cell]] = {
        "policy": lambda label: label,
        "regret": lambda label: value_of(measured.curve(label, "regret")),
        "reward": lambda label: value_of(measured.curve(label, "reward")),
        "messages": lambda label: Value(measured.curve(label, "total").end),
        "MB sent": lambda label: Value(measured.curve(label, "bytes").end / 1e6, digits=2),
        "clusters": lambda label: Value(measured.curve(label, "found").end, digits=1),
        "ARI": lambda label: Value(measured.curve(label, "ari").end, digits=2),
        "ε spent": lambda label: spent(measured, label),
    }
    title = f"{measured.panel.title}: at the last round"
    if measured.knows_clusters:
        title += f"; true clusters: {measured.curve(ranked[0], 'true').end:g}"
    else:
        del cells["ARI"]
    rows = [tuple(cell(label) for cell in cells.values()) for label in ranked]
    return Table(name, title, tuple(cells), rows)


def spent(measured: Measured, label: str) -> str:
    """For whom and against whom a policy reports what to have spent, at every δ it reports."""
    report = measured.privacy[label]
    if report is None:
        return "–"
    spent = "; ".join(f"{epsilon:.2f} at δ={delta:g}" for epsilon, delta in report["spent"])
    return f"{report['unit']}, {report['notion']}: {spent}"
