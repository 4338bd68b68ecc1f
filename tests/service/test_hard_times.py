"""Real servers whose clock is set by a day, and one whose disk is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from fclub import Client
from fclub.errors import FclubError
from fclub.service.fleet import Fleet, Server
from fclub.service.link.channel import GLOBAL
from fclub.service.settings import Model

from .conftest import wait_for

pytestmark = pytest.mark.slow

DAY = 86_400
ITEMS = {"tea": [0.6, 0.8], "milk": [1.0, 0.0]}
INJECTED = """
import os, pathlib, time
_now, _ahead = time.time, pathlib.Path(os.environ["CLOCK_AHEAD"])
time.time = lambda: _now() + float(_ahead.read_text())
"""


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes that are started now have a clock that is ahead by what stands in this file."""
    (tmp_path / "sitecustomize.py").write_text(INJECTED)
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("CLOCK_AHEAD", str(ahead))
    return ahead


def set_clock(clock: Path, seconds: int) -> None:
    new = clock.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(clock)


def health(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{server.url}/healthz", timeout=60).json()
    return answer


def is_well(server: Server) -> bool:
    return bool(health(server)["status"] == "ok")


def says(log: Path, line: str) -> bool:
    return log.read_text().count(line) == 1


def scraped(server: Server, token: str) -> str:
    header = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{server.url}/metrics", headers=header, timeout=60).text


def test_a_clock_that_is_set_by_a_day_stops_nothing_and_is_told(tmp_path: Path, clock: Path) -> None:
    """Forth, back by two days, and a restart there; global server, local server and broker run on."""
    with Fleet(tmp_path / "up", 1, Model(policy="fclub-plus", dim=2)) as fleet:
        (local,) = fleet.locals
        logs = [tmp_path / "up" / f"{name}.log" for name in ("s0", GLOBAL)]

        def visits() -> None:
            with Client(local.url, fleet.token, timeout=60) as client:
                for number in range(20):
                    shown = client.recommend(f"user-{number % 4}", ITEMS)
                    assert client.feedback(shown.decision, 1.0)

        def well() -> None:
            visits()
            for server in fleet.servers:
                wait_for(partial(is_well, server))
                assert 0.0 <= health(server)["uptime_seconds"] < DAY / 2
            heard = scraped(fleet.hub, fleet.token).split("fclub_peer_last_heard_seconds{")[-1]
            assert 0.0 <= float(heard.split()[1]) < DAY / 2

        well()
        with Client(local.url, fleet.token, timeout=60) as client:
            open_since = client.recommend("before", ITEMS)
        for ahead, by in ((DAY, DAY), (-DAY, -2 * DAY)):
            set_clock(clock, ahead)
            for log in logs:
                wait_for(partial(says, log, f"the clock was set by_seconds={by}"))
            well()
        with Client(local.url, fleet.token, timeout=60) as client:
            assert client.feedback(open_since.decision, 1.0)
        for server in fleet.servers:
            server.stop()
            server.start()
            server.wait_until_ready()
        well()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_told_before_and_after_and_loses_nothing(
    tmp_path: Path, small_disk: Path
) -> None:
    values = {"model__dim": 2, "model__policy": "fclub-plus", "store": str(small_disk / "local.db")}
    server = Server("local", "local", tmp_path, values, "token")
    log, acknowledged = tmp_path / "local.log", 0
    server.start()
    try:
        server.wait_until_ready()
        wait_for(partial(is_well, server))
        filler = small_disk / "filler"
        free = os.statvfs(small_disk)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 300_000))
        found = health(server)
        assert found["status"] == "degraded"
        assert f"the disk at {small_disk} is nearly full" in found["reason"]
        assert "fclub_disk_nearly_full 1.0" in scraped(server, "token")
        with Client(server.url, "token", retries=0, timeout=60) as client:
            try:
                for number in range(20_000):
                    shown = client.recommend(f"user-{number}", ITEMS)
                    client.feedback(shown.decision, 1.0)
                    acknowledged += 1
            except (FclubError, OSError):
                pass
        process = server.process
        assert acknowledged > 0
        assert process is not None
        assert process.wait(60) == 1
        told = f"SQLITE_FULL store={values['store']} disk={small_disk} free_bytes="
        assert log.read_text().count(told) == 1
        filler.unlink()
        server.start()
        server.wait_until_ready()
        assert f"fclub_observations_total {float(acknowledged)}" in scraped(server, "token")
        wait_for(partial(is_well, server))
    finally:
        server.stop()
