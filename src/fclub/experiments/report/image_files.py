"""Charts as PNG and PDF, by matplotlib without a display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fclub.experiments.report.charts import Chart, Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "x": "x",
    "cross": "P",
    "star": "*",
}


def draw(chart: Chart) -> Figure:
    """The chart with its legend beside it, where it hides nothing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for line in chart.lines:
        _draw_line(axes, line)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, title=chart.title)
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    _number(axes.xaxis, axes.get_xlim(), chart.log_x)
    _number(axes.yaxis, axes.get_ylim(), chart.log_y)
    if chart.limit is not None:
        axes.set_ylim(0, chart.limit)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    return figure


def _number(axis: Any, limits: tuple[float, float], log: bool) -> None:
    """Plain numbers as long as they are readable; 1, 2 and 5 where a log axis spans few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = limits
    if high < 1e7:
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    if log:
        axis.set_minor_formatter(NullFormatter())
        if high < 100 * low:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def _draw_line(axes: Any, line: Line) -> None:
    colour, dash, marker = line.style
    axes.plot(
        line.x,
        line.mean,
        label=line.label,
        color=colour,
        linestyle=DASHES[dash],
        marker=MARKERS[marker.removesuffix("-open")] if line.marked else None,
        markerfacecolor="none" if marker.endswith("-open") else colour,
        markersize=7,
    )
    if line.std is not None and line.marked:
        axes.errorbar(line.x, line.mean, line.std, color=colour, fmt="none", capsize=3, alpha=0.7)
    elif line.std is not None:
        low, high = line.mean - line.std, line.mean + line.std
        axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)


def save_chart(chart: Chart, folder: Path) -> None:
    """PNG and PDF; without dates, so the same data gives the same bytes."""
    figure = draw(chart)
    figure.savefig(folder / f"{chart.name}.png", dpi=150, metadata={"Software": None})
    figure.savefig(folder / f"{chart.name}.pdf", metadata={"CreationDate": None, "Producer": None})
