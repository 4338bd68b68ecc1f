"""A learner of another package serves live."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.foreign.installing import NAME, install_package, remove

from fclub.client import Client
from fclub.service.fleet import Fleet
from fclub.service.settings import Model

from .conftest import wait_for

COFFEE_TEA = {"coffee": [0.0, 0.9, 0.1], "tea": [0.9, 0.0, 0.1]}


@pytest.mark.slow
def test_it_serves_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All servers as processes over a real broker: what one learns the other shows to a newcomer."""
    site = install_package(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (os.fspath(site), before))))
    with Fleet(tmp_path / "fleet", 2, Model(policy=NAME, dim=3)) as fleet:
        first, second = (Client(one.url, fleet.token) for one in fleet.locals)
        assert second.recommend("zoe", COFFEE_TEA).item == "coffee", "nothing is known"
        for number in range(60):
            shown = first.recommend(f"user-{number % 6}", COFFEE_TEA)
            assert first.feedback(shown.decision, float(shown.item == "tea"))
        wait_for(lambda: second.recommend("zoe", COFFEE_TEA).item == "tea")
        fleet.locals[1].kill()
        fleet.locals[1].start()
        fleet.locals[1].wait_until_ready()
        assert second.recommend("new", COFFEE_TEA).item == "tea", "replayed"
        for client in (first, second):
            client.close()
    remove()
