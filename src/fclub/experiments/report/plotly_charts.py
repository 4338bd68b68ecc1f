"""Charts as plotly.js takes them: plain dictionaries, so that a page needs plotly's script once."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.types import Floats
from fclub.experiments.report.charts import Chart, Line

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
