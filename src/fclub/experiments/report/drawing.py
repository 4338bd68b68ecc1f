"""The two ways in which charts are drawn.

For the page they become what plotly.js takes: plain dictionaries, so that a page needs plotly's script
once. For documents matplotlib draws PNG and PDF, without a display.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fclub.core.types import Floats
from fclub.experiments.report.charts import Chart, Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BAND = 0.15
DIGITS = 6
"""Significant digits in the page: more than anybody can see, a third of the size."""


def to_plotly(chart: Chart) -> dict[str, Any]:
    """Data and layout; colours of text and grid are left to the page's style sheet."""
    data: list[dict[str, Any]] = []
    for line in chart.lines:
        if line.std is not None and not line.marked:
            data.append(_band(line, chart.log_y))
    data += [_trace(line, chart) for line in chart.lines]
    return {"data": data, "layout": _layout(chart)}


def _numbers(values: Floats) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _colour(line: Line, opacity: float) -> str:
    red, green, blue = (int(line.style.colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _band(line: Line, log: bool) -> dict[str, Any]:
    assert line.std is not None
    low, high = line.mean - line.std, line.mean + line.std
    if log:  # a polygon cannot leave a logarithmic axis
        low = np.maximum(low, line.mean / 10)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _numbers(np.concatenate([line.x, line.x[::-1]])),
        "y": _numbers(np.concatenate([high, low[::-1]])),
        "fill": "toself",
        "fillcolor": _colour(line, BAND),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "legendgroup": line.label,
        "showlegend": False,
    }


def _trace(line: Line, chart: Chart) -> dict[str, Any]:
    number = f"%{{y:,.{chart.digits}f}}"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if line.marked else "lines",
        "name": line.label,
        "legendgroup": line.label,
        "x": _numbers(line.x),
        "y": _numbers(line.mean),
        "line": {"color": line.style.colour, "dash": line.style.dash, "width": 2},
        "hovertemplate": f"{line.label}<br>{chart.x_label}: %{{x:,}}<br>{number}<extra></extra>",
    }
    if line.marked:
        trace["marker"] = {"symbol": line.style.marker, "size": 9}
        if line.std is not None:
            array = _numbers(line.std)
            trace["error_y"] = {"type": "data", "array": array, "color": _colour(line, 0.7)}
    return trace


def _layout(chart: Chart) -> dict[str, Any]:
    """The legend is under the chart, where a narrow screen has room for it."""
    vertical: dict[str, Any] = {"title": {"text": chart.y_label}, "automargin": True}
    if chart.limit is not None:
        vertical["range"] = [0, chart.limit]
    elif not chart.log_y:
        vertical["rangemode"] = "tozero"
    return {
        "margin": {"l": 16, "r": 16, "t": 16, "b": 16},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "legend": {"orientation": "h", "yanchor": "top", "y": -0.2, "x": 0},
        "xaxis": {
            "title": {"text": chart.x_label, "standoff": 8},
            "automargin": True,
            **_axis(chart.log_x, [line.x for line in chart.lines]),
        },
        "yaxis": vertical | _axis(chart.log_y, [line.mean for line in chart.lines]),
    }


def _axis(log: bool, values: list[Floats]) -> dict[str, Any]:
    """Plain numbers as long as they are readable; only powers of ten if a log axis spans several."""
    numbers = np.concatenate(values)
    large = bool(numbers.max() >= 1e7)
    axis: dict[str, Any] = {"type": "log" if log else "linear", "separatethousands": True}
    axis["exponentformat"] = "power" if large else "none"
    positive = numbers[numbers > 0]
    if log and len(positive) and positive.max() > 30 * positive.min():
        axis["dtick"] = 1
    return axis


def views(chart: Chart) -> dict[str, dict[str, Any]]:
    """Other ways to look at the chart, by the name on their button, as changes of the layout."""
    if chart.log_y or chart.digits:
        return {}
    whole = {"yaxis.type": "linear", "yaxis.autorange": True}
    log = {"yaxis.type": "log", "yaxis.autorange": True}
    if chart.limit is None:
        return {"linear": whole, "logarithmic": log}
    cut = {"yaxis.type": "linear", "yaxis.range": [0, chart.limit]}
    return {"cut": cut, "everything": whole, "logarithmic": log}


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
