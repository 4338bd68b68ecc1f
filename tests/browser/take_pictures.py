"""Makes the pictures of the docs: `make pictures`. A browser looks at `fclub up`; the demo plots."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.browser import chromium

IMAGES = chromium.ROOT / "docs" / "images"
UP = "up --policy fclub-plus --servers 6 --users 24 --rate 100 --no-browser --dir"
DEMO = "demo --rounds 10000 --seeds 2 --no-open --out"
FIGURES = ("regret", "communication", "ari")
VISITS = 1500
TOLD = "document.getElementById('verdict').textContent.match(/After ([0-9,]+) visits/)?.[1] ?? '0'"
SECONDS = 300


def fclub(command: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fclub", *command.split(), str(folder)])


def picture_of_the_page(folder: Path) -> None:
    process = fclub(UP, folder)
    addresses = folder / "servers.json"
    deadline = time.monotonic() + SECONDS
    while not addresses.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
    try:
        hub = json.loads(addresses.read_text())["global"]
        with chromium.chromium() as driver:
            chromium.look_at(driver, f"{hub['url']}/#token={hub['token']}")
            enough = f"return parseInt(({TOLD}).replace(',', '')) > {VISITS}"
            chromium.wait_for(driver, enough, SECONDS)
            shot = chromium.screenshot(driver, "readme", 1280)
        shutil.copy(shot, IMAGES / "dashboard.png")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def pictures_of_the_report(folder: Path) -> None:
    if fclub(DEMO, folder).wait() == 0:
        for name in FIGURES:
            shutil.copy(folder / "figures" / f"synthetic-blocks-{name}.png", IMAGES / f"{name}.png")


if __name__ == "__main__":
    os.chdir(chromium.ROOT)
    with tempfile.TemporaryDirectory() as name:
        picture_of_the_page(Path(name) / "federation")
        pictures_of_the_report(Path(name) / "demo")
