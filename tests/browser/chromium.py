"""Debian's chromium, driven headless, and what a test wants to know of a page."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "out" / "screenshots"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS = {1280: 900, 390: 844}
PATIENCE = 60


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser with its console and network kept as logs."""
    browser, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or chromedriver is None:
        pytest.skip("chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield driver
    finally:
        driver.quit()


def load(driver: Any, url: str, width: int = 1280, scheme: str = "light") -> None:
    """Load a page afresh, on a screen of this width."""
    complaints(driver)  # of the page before
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    size = {"width": width, "height": WIDTHS[width], "deviceScaleFactor": 1, "mobile": width < 800}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get("about:blank")
    driver.get(url)


def look_at(driver: Any, url: str, width: int = 1280, scheme: str = "light") -> None:
    """Load a server's page and wait until it is live."""
    load(driver, url, width, scheme)
    wait_for(driver, "return document.getElementById('status').classList.contains('live')")


def cut_off(driver: Any) -> None:
    """From now on there is no network."""
    driver.execute_cdp_cmd("Network.enable", {})
    nothing = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **nothing})


def wait_for(driver: Any, script: str, seconds: float = PATIENCE) -> Any:
    return WebDriverWait(driver, seconds, poll_frequency=0.2).until(lambda d: d.execute_script(script))


def measure_work(driver: Any) -> None:
    """Count the processor's time, not the clock's: other programs do not slow a page's work down."""
    driver.execute_cdp_cmd("Performance.disable", {})
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})


def work_done(driver: Any) -> float:
    """Seconds that the main thread has worked so far, all that is drawn by now included."""
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def text_of(driver: Any, identifier: str) -> str:
    return str(
        driver.execute_script("return document.getElementById(arguments[0]).textContent", identifier)
    )


def number_of(driver: Any, identifier: str) -> float:
    return float(text_of(driver, identifier).replace(",", ""))


def screenshot(driver: Any, name: str, width: int) -> Path:
    """The whole page, as an artefact."""
    height = driver.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / f"{name}-{width}.png"
    path.write_bytes(base64.b64decode(shot["data"]))
    return path


def hosts(driver: Any) -> set[str]:
    """Every host that a request went to."""
    found = set()
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if url.startswith(("http", "ws")):
                found.add(url.split("/")[2].split(":")[0])
    return found


def complaints(driver: Any) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser")]


def serious_violations(driver: Any) -> list[str]:
    """What axe-core finds that is serious or critical."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make node_modules/axe-core")
    driver.execute_script(AXE.read_text())
    found = driver.execute_async_script("axe.run().then(arguments[0])")["violations"]
    return [
        f"{one['id']}: {node['html']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
