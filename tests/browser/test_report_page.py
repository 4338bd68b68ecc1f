"""The report in a real browser: opened from disk, without a network, on a desk and on a telephone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fclub.experiments.figures import bounds, demo_figures
from fclub.experiments.panels import Scale
from fclub.experiments.report import Built, build_report
from fclub.experiments.reproduce import run_study

pytestmark = pytest.mark.browser
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WIDTHS = (1280, 390)

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
def browser() -> Iterator[Any]:
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield driver
    driver.quit()


def show(browser: Any, page: Path, width: int, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.resolve().as_uri())


@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_is_visible_and_nothing_complains(browser: Any, built: Built, width: int) -> None:
    show(browser, built.page, width)
    charts = {c.name: c for section in built.sections for c in section.drawn.charts}
    seen = browser.execute_script(VISIBLE)
    assert [place["name"] for place in seen] == list(charts)
    for place in seen:
        chart = charts[place["name"]]
        assert place["left"] >= 0
        assert place["right"] <= width
        assert place["height"] >= 400
        assert place["lines"] >= len(chart.lines)
        assert place["legend"] == len(chart.lines)
        assert place["titles"] == [chart.x_label, chart.y_label]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser: Any, built: Built, scheme: str) -> None:
    show(browser, built.page, 1280, scheme)
    assert browser.execute_script(CONTRAST) >= 4.5


def test_buttons_change_the_vertical_axis(browser: Any, built: Built) -> None:
    show(browser, built.page, 1280)
    axis = "return document.getElementById('chart-synthetic-blocks-regret')._fullLayout.yaxis.type"
    assert browser.execute_script(axis) == "linear"
    (button,) = browser.find_elements("css selector", "#synthetic button:last-child")
    button.click()
    assert browser.execute_script(axis) == "log"
    assert browser.get_log("browser") == []
