"""Charts for the eye: complete, alike in both kinds of plot, reproducible."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fclub.experiments.report.charts import POLICY, Chart, Line, regret_limit, style_of
from fclub.experiments.report.drawing import draw, save_chart, to_plotly
from fclub.experiments.study.figures import compared


def line(label: str, end: float, std: float | None = 1.0) -> Line:
    x = np.array([1.0, 10.0, 100.0])
    mean = x * end / 100
    return Line(label, x, mean, None if std is None else np.full(3, std), style_of(label))


def test_every_policy_has_a_style_of_its_own() -> None:
    assert set(compared()) <= set(POLICY)
    for first, second in combinations(POLICY.values(), 2):
        assert first[:2] != second[:2]


def test_bands_are_one_standard_deviation_wide() -> None:
    chart = Chart("c", "t", "x", "y", [line("linucb", 50.0, 2.0)])
    band, course = to_plotly(chart)["data"]
    high, low = np.array(band["y"][:3]), np.array(band["y"][3:])[::-1]
    np.testing.assert_allclose(high - course["y"], 2.0)
    np.testing.assert_allclose(course["y"] - low, 2.0)


def test_static_plot_has_labels_legend_and_bands() -> None:
    chart = Chart("c", "t", "x", "y", [line("linucb", 50.0), line("club", 60.0, None)])
    axes = draw(chart).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("x", "y", "t")
    assert [drawn.get_label() for drawn in axes.lines] == ["linucb", "club"]
    assert len(axes.collections) == 1


def test_a_line_far_above_the_others_is_cut_and_said() -> None:
    lines = [line("linucb", 100.0), line("cdp-fclub-dc", 2000.0)]
    limit = regret_limit(lines)
    assert limit == pytest.approx(250.0)
    assert "cdp-fclub-dc at 2,000" in Chart("c", "t", "x", "y", lines, limit=limit).caption
    assert regret_limit(lines[:1]) is None


def test_same_chart_same_bytes(tmp_path: Path) -> None:
    chart = Chart("c", "t", "x", "y", [line("linucb", 50.0)])
    contents = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        save_chart(chart, folder)
        contents.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"c.png", "c.pdf"}
