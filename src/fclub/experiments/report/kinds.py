"""The kinds of figures: how each is drawn, and what is claimed about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fclub.experiments.report import claims
from fclub.experiments.report.bounds import bounds_lines, bounds_table
from fclub.experiments.report.charts import (
    GREY,
    Chart,
    Drawn,
    Line,
    Style,
    line_of,
    over_values,
    regret_chart,
    regret_limit,
    result_table,
    style_of,
    value_of,
    visit_charts,
)
from fclub.experiments.report.claims import Claim
from fclub.experiments.report.measured import Curve, Measured, relative
from fclub.experiments.report.tables import Cell, Table, Value
from fclub.experiments.study.advice import ALONE
from fclub.experiments.study.figures import PRINTED
from fclub.experiments.study.study import Figure

PAPER_MILLISECONDS: dict[str, dict[str, float]] = {
    "synthetic-blocks": {
        "cdp-fclub-dc": 1.707,
        "fclub-dc": 1.814,
        "fclub": 58.870,
        "sclub": 3.805,
        "club": 0.779,
        "linucb": 0.647,
        "homo-dc": 1.277,
        "homo": 29.265,
    },
    "movielens-top40": {
        "cdp-fclub-dc": 1.667,
        "fclub-dc": 1.892,
        "fclub": 83.492,
        "sclub": 3.855,
        "club": 0.776,
        "linucb": 0.654,
        "homo-dc": 1.301,
        "homo": 35.645,
    },
}
"""The paper's running times per round, on its machine."""


def comparison(figure: Figure, measured: list[Measured]) -> Drawn:
    drawn = Drawn()
    for m in measured:
        drawn.charts.append(regret_chart(m, f"{m.panel.key}-regret"))
        drawn.charts.extend(visit_charts(m, m.panel.key))
        drawn.tables.append(result_table(m, f"{m.panel.key}-results"))
    return drawn


def communication(figure: Figure, measured: list[Measured]) -> Drawn:
    drawn = Drawn()
    for m in measured:
        sending = [label for label in m.labels if m.curve(label, "total").end > 0]
        lines = [line_of(label, m.curve(label, "total"), k) for k, label in enumerate(sending)]
        title = f"Communication: {m.panel.title}"
        name = f"{m.panel.key}-communication"
        y_label = "messages counted so far"
        if lines:
            drawn.charts.append(Chart(name, title, "round t", y_label, lines, log_x=True, log_y=True))
        kinds = ("uploads", "downloads", "phases", "total")
        rows: list[tuple[Cell, ...]] = [
            (
                label,
                *(value_of(m.curve(label, kind)) for kind in kinds),
                Value(m.curve(label, "bytes").end / 1e6, digits=2),
            )
            for label in sorted(sending, key=lambda label: m.curve(label, "total").end)
        ]
        drawn.tables.append(Table(name, title, ("policy", *kinds, "MB"), rows))
    return drawn


def runtime(figure: Figure, measured: list[Measured]) -> Drawn:
    drawn = Drawn()
    for m in measured:
        paper = PAPER_MILLISECONDS.get(m.panel.key, {})
        rows: list[tuple[Cell, ...]] = []
        for label in sorted(m.labels, key=lambda label: m.curve(label, "microseconds").end):
            printed: Cell = Value(1e3 * paper[label]) if label in paper else "–"
            rows.append((label, value_of(m.curve(label, "microseconds"), 2), printed))
        columns = ("policy", "measured, µs per round", "paper, µs per round")
        title = f"Running time: {m.panel.title}"
        drawn.tables.append(Table(f"{m.panel.key}-runtime", title, columns, rows))
    return drawn


def _value_table(figure: Figure, measured: list[Measured]) -> Table:
    """Regret of every label (rows) at every value (columns)."""
    rows: list[tuple[Cell, ...]] = [
        (label, *(value_of(m.curve(label, "regret")) for m in measured)) for label in measured[0].labels
    ]
    columns = ("policy", *(m.panel.title for m in measured))
    return Table(f"{figure.name}-results", f"{figure.title}: regret at the last round", columns, rows)


def sweep(figure: Figure, measured: list[Measured]) -> Drawn:
    """The paper's view (one curve of its algorithm per value), then all policies over the value."""
    courses = []
    for k, m in enumerate(measured):
        curve = m.curve(PRINTED, "regret")
        x = curve.t.astype(np.float64)
        courses.append(Line(m.panel.title, x, curve.mean, curve.std, style_of("", k)))
    lines = [over_values(label, measured, "regret") for label in measured[0].labels]
    first = Chart(
        f"{figure.name}-curves",
        f"{PRINTED} as printed: {figure.axis}",
        "round t",
        "cumulative regret",
        courses,
    )
    second = Chart(
        f"{figure.name}-regret",
        f"All policies: {figure.axis}",
        figure.axis,
        "cumulative regret at the last round",
        lines,
        log_x="ε" in figure.axis,
        limit=regret_limit(lines),
    )
    return Drawn([first, second], [_value_table(figure, measured)])


def privacy(figure: Figure, measured: list[Measured]) -> Drawn:
    lines = []
    for label in measured[0].labels:
        policy, _, delta = label.partition(", ")
        style = style_of(policy)
        dashed = Style(style.colour, "dot" if delta.endswith("00001") else style.dash, style.marker)
        lines.append(over_values(label, measured, "regret", dashed))
    chart = Chart(
        "privacy-regret",
        "What a privacy budget costs",
        figure.axis,
        "cumulative regret at the last round",
        lines,
        log_x=True,
        log_y=True,
        note="fclub-dc and linucb add no noise: their lines are references.",
    )
    return Drawn([chart], [_value_table(figure, measured)])


def tradeoff(figure: Figure, measured: list[Measured]) -> Drawn:
    lines = []
    for label in measured[0].labels:
        messages = over_values(label, measured, "total")
        regret = over_values(label, measured, "regret")
        same = np.ptp(messages.mean) == 0
        keep = slice(0, 1) if same else slice(None)
        std = None if regret.std is None else regret.std[keep]
        lines.append(Line(label, messages.mean[keep], regret.mean[keep], std, style_of(label), True))
    chart = Chart(
        "tradeoff-regret",
        "Regret against communication",
        "messages at the last round",
        "cumulative regret at the last round",
        lines,
        log_x=True,
        log_y=True,
    )
    rows: list[tuple[Cell, ...]] = [
        (
            f"{label}, {m.panel.title}",
            value_of(m.curve(label, "total")),
            value_of(m.curve(label, "regret")),
        )
        for label, line in zip(measured[0].labels, lines, strict=True)
        for m in measured[: len(line.x)]
    ]
    table = Table("tradeoff-results", figure.title, ("policy", "messages", "regret"), rows)
    return Drawn([chart], [table])


def bounds(figure: Figure, measured: list[Measured]) -> Drawn:
    (m,) = measured
    regret, messages = bounds_lines(m)
    charts = [
        Chart(
            f"bounds-{name}",
            title,
            "round t",
            label,
            lines,
            log_x=True,
            log_y=True,
            note="A bound above the line of what is possible at all is vacuous.",
        )
        for name, title, label, lines in (
            ("regret", "Theorem 1 and measured regret", "cumulative regret", regret),
            ("messages", "Communication proposition and measured messages", "messages", messages),
        )
    ]
    return Drawn(charts, [bounds_table(m)])


def clusters(figure: Figure, measured: list[Measured]) -> Drawn:
    drawn = Drawn()
    for m in measured:
        for metric, label, digits in (
            ("found", "clusters in use", 1),
            ("ari", "adjusted Rand index", 2),
        ):
            lines = [line_of(name, m.curve(name, metric), k) for k, name in enumerate(m.labels)]
            if metric == "ari":
                x, score = lines[0].x, claims.server_score(m)
                lines.append(Line("server alone", x, np.full(len(x), score), None, Style(GREY, "dot")))
            title = f"{label[0].upper()}{label[1:]}: {m.panel.title}"
            name = f"{m.panel.key}-{metric}"
            drawn.charts.append(Chart(name, title, "round t", label, lines, log_x=True, digits=digits))
    return drawn


MARKS = (1, 2, 5, 10, 20, 50, 100)
"""Visits per user at which the table of a gain is read."""
FIRST_VISITS = 0.5
"""Visits per user before which a gain is chance."""


def _after_first_visits(label: str, curve: Curve, users: float, style: Style) -> Line:
    """A gain over visits per user, from where it says something."""
    x = curve.t / users
    shown = x >= min(FIRST_VISITS, float(x[-1]))
    std = None if curve.std is None else curve.std[shown]
    return Line(label, x[shown], curve.mean[shown], std, style)


def gain(figure: Figure, measured: list[Measured]) -> Drawn:
    """Regret in units of that of the same policy alone, over visits per user."""
    drawn = Drawn()
    for m in measured:
        users, alone = float(m.environment["users"]), m.curve(ALONE, "regret")
        rivals = [label for label in m.labels if label != ALONE]
        ratios = {label: relative(m.curve(label, "regret"), alone) for label in rivals}
        last = float(alone.t[-1]) / users
        lines = [
            _after_first_visits(label, curve, users, style_of(label, k))
            for k, (label, curve) in enumerate(ratios.items())
        ]
        lines.append(_after_first_visits(ALONE, relative(alone, alone), users, Style(GREY, "dot")))
        drawn.charts.append(
            Chart(
                f"{m.panel.key}-gain",
                f"Regret, as a multiple of alone: {m.panel.title}",
                "visits per user",
                "regret / regret alone",
                lines,
                log_x=True,
                digits=3,
                note="Below 1, federating pays.",
            )
        )
        marks = [mark for mark in MARKS if mark < last] + [last]
        rows: list[tuple[Cell, ...]] = [
            (label, *(Value(curve.at(mark * users), digits=3) for mark in marks))
            for label, curve in ratios.items()
        ]
        columns = ("policy", *(f"{mark:g} visits" for mark in marks))
        title = f"Regret as a multiple of alone: {m.panel.title}"
        drawn.tables.append(Table(f"{m.panel.key}-gain", title, columns, rows))
    return drawn


class Kind(NamedTuple):
    """From a figure and its measurements to charts and tables, and to claims."""

    draw: Callable[[Figure, list[Measured]], Drawn]
    claims: Callable[[Figure, list[Measured]], Iterator[Claim]]


KINDS = {
    "comparison": Kind(comparison, claims.comparison),
    "degenerate": Kind(comparison, claims.degenerate),
    "communication": Kind(communication, claims.communication),
    "runtime": Kind(runtime, claims.runtime),
    "sweep": Kind(sweep, claims.sweep),
    "privacy": Kind(privacy, claims.privacy),
    "tradeoff": Kind(tradeoff, claims.tradeoff),
    "bounds": Kind(bounds, claims.bounds),
    "clusters": Kind(clusters, claims.clusters),
    "gain": Kind(gain, claims.gain),
}


def show(figure: Figure, measured: list[Measured]) -> tuple[Drawn, list[Claim]]:
    """Everything that a figure's kind makes of its measurements; nothing without any.

    A figure of fewer than five seeds settles no claim.
    """
    if not measured:
        return Drawn(), []
    kind = KINDS[figure.kind]
    found = [replace(claim, figure=figure.name) for claim in kind.claims(figure, measured)]
    if min(len(m.panel.experiment.seeds) for m in measured) < claims.FEWEST:
        found = [replace(claim, answers=(None,)) for claim in found]
    return kind.draw(figure, measured), found
