"""The report in a real browser: opened from disk, without a network, on a desk and on a telephone."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser import chromium

from fclub.experiments.report.pages import Built, build_report
from fclub.experiments.study.figures import Scale, bounds, demo_figures
from fclub.experiments.study.study import run_study

pytestmark = pytest.mark.browser

VISIBLE = """
return [...document.querySelectorAll(".chart")].map(place => {
  const box = place.getBoundingClientRect();
  return {
    name: place.dataset.chart, left: box.left, right: box.right, height: box.height,
    lines: [...place.querySelectorAll(".scatterlayer .trace .lines path")].filter(
      path => path.getBoundingClientRect().width > 0).length,
    legend: place.querySelectorAll(".legend .traces").length,
    titles: [...place.querySelectorAll(".xtitle, .ytitle")].map(title => title.textContent),
  };
});
"""
CONTRAST = """
const light = colour => {
  const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(
    v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const paper = light(getComputedStyle(document.body).backgroundColor);
const ratio = colour => {
  const [a, b] = [light(colour), paper].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const words = [...document.querySelectorAll("p, th, td, caption, figcaption, a, .verdict, button")];
const ticks = [...document.querySelectorAll(".xtick text, .legendtext")];
return Math.min(...words.map(e => ratio(getComputedStyle(e).color)),
                ...ticks.map(e => ratio(getComputedStyle(e).fill)));
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder, scale = tmp_path_factory.mktemp("page"), Scale(rounds=300, seeds=(0, 1))
    run_study("A study", "fclub test", [*demo_figures(scale), bounds(scale)], folder, jobs=1)
    return build_report(folder)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium.chromium() as driver:
        chromium.cut_off(driver)
        yield driver


def show(driver: Any, built: Built, width: int = 1280, scheme: str = "light") -> None:
    chromium.load(driver, built.page.resolve().as_uri(), width, scheme)


@pytest.mark.parametrize("width", chromium.WIDTHS)
def test_every_figure_is_visible_and_nothing_complains(driver: Any, built: Built, width: int) -> None:
    show(driver, built, width)
    charts = {c.name: c for section in built.sections for c in section.drawn.charts}
    seen = driver.execute_script(VISIBLE)
    assert [place["name"] for place in seen] == list(charts)
    for place in seen:
        chart = charts[place["name"]]
        assert place["left"] >= 0
        assert place["right"] <= width
        assert place["height"] >= 400
        assert place["lines"] >= len(chart.lines)
        assert place["legend"] == len(chart.lines)
        assert place["titles"] == [chart.x_label, chart.y_label]
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert chromium.complaints(driver) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(driver: Any, built: Built, scheme: str) -> None:
    show(driver, built, 1280, scheme)
    assert driver.execute_script(CONTRAST) >= 4.5


def test_buttons_change_the_vertical_axis(driver: Any, built: Built) -> None:
    show(driver, built)
    axis = "return document.getElementById('chart-synthetic-blocks-regret')._fullLayout.yaxis.type"
    assert driver.execute_script(axis) == "linear"
    (button,) = driver.find_elements("css selector", "#synthetic button:last-child")
    button.click()
    assert driver.execute_script(axis) == "log"
    assert chromium.complaints(driver) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", chromium.WIDTHS)
def test_nothing_is_serious_to_axe(driver: Any, built: Built, width: int, scheme: str) -> None:
    show(driver, built, width, scheme)
    chromium.screenshot(driver, f"report-{scheme}", width)
    assert chromium.serious_violations(driver) == []
