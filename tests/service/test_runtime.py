"""A runner ends when it is told to, and says so when it cannot go on."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.parts import is_a

from fclub.core.types import Vector
from fclub.errors import NotStored, NumericalError
from fclub.protocol.messages import PhaseStart
from fclub.service.link.channel import GLOBAL
from fclub.service.link.wire import DirectWire, end
from fclub.service.monitoring import Monitor
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import check_store, local_node
from fclub.service.nodes.patience import Patience
from fclub.service.nodes.runner import Runner
from fclub.service.serve import local_app
from fclub.service.settings import LocalSettings, Model

from .conftest import DIM, local_settings, serving, wait_for


async def stubborn(times: int) -> None:
    """Drops so many cancellations, as a library may."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            times -= 1
            if times < 0:
                raise


def test_a_task_that_drops_cancellations_is_ended_all_the_same() -> None:
    async def main() -> list[bool]:
        tasks = [asyncio.create_task(stubborn(times)) for times in (0, 1, 3)]
        await asyncio.sleep(0)
        await end(*tasks)
        return [task.cancelled() for task in tasks]

    assert asyncio.run(main()) == [True, True, True]


def steps_of(patience: Patience, waiting: int, count: int) -> list[int]:
    return [step for step in range(count) if patience.ends((1, 7), waiting)]


def test_what_is_not_confirmed_is_sent_again_less_and_less_often() -> None:
    patience = Patience()
    assert steps_of(patience, 3, 40) == [1, 3, 7, 15, 23, 31, 39]
    assert not patience.ends((1, 8), 2), "something was confirmed"
    assert not patience.ends((1, 8), 0), "nothing waits"
    assert steps_of(patience, 3, 4) == [1, 3]
    assert steps_of(Patience(), 800, 60) == [1, 3, 7, 15, 31, 51], "the more there is, the longer"


def test_nothing_to_end_is_no_error() -> None:
    asyncio.run(end())


def runner_of(folder: Path) -> tuple[LocalNode, Runner]:
    node = local_node(LocalSettings(model=Model(policy="fclub-dc", dim=2), store=str(folder / "s.db")))
    board: dict[str, DirectWire] = {}
    DirectWire(GLOBAL, board)
    return node, Runner(node, DirectWire(node.name, board), Monitor("local"))


async def breaks_down(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails while one group is on its way to it and another one waits."""
    node, runner = runner_of(folder)
    await runner.start()
    await runner.commit()

    def fail() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(node.store, "commit", fail)
    node.recommend("ann", np.eye(2), ["a", "b"])
    first = asyncio.create_task(runner.commit())
    await asyncio.sleep(0)
    second = asyncio.create_task(runner.commit())
    for waiting in (first, second, asyncio.create_task(runner.commit())):
        with pytest.raises(NotStored):
            await waiting
    assert runner.failure is not None
    assert isinstance(runner.failure.exception(), sqlite3.OperationalError)
    await runner.stop()


def test_after_a_failed_commit_nothing_is_acknowledged_and_the_runner_still_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(asyncio.wait_for(breaks_down(tmp_path, monkeypatch), 30))


async def half_a_frame(folder: Path, monkeypatch: pytest.MonkeyPatch) -> BaseException | None:
    """A frame is applied in part while somebody else waits for the disk."""
    node, runner = runner_of(folder)
    await runner.start()
    await runner.commit()

    def receive(sender: str, data: bytes) -> None:
        node.to_global(PhaseStart(1))
        raise ZeroDivisionError

    monkeypatch.setattr(node, "receive", receive)
    other = asyncio.create_task(runner.commit())
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await runner._deliver([(GLOBAL, b"")])
    with pytest.raises(NotStored):
        await other
    assert runner.failure is not None
    await runner.stop()
    return runner.failure.exception()


def test_what_was_applied_in_part_is_never_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(asyncio.run(half_a_frame(tmp_path, monkeypatch)), ZeroDivisionError)
    node, _ = runner_of(tmp_path)
    assert node.sessions.channel.sent == 0, "the store opens, and knows nothing of it"
    node.store.close()


def visits(client: httpx.Client) -> tuple[httpx.Response, httpx.Response]:
    items = [{"id": "a", "features": [0.1] * DIM}]
    shown = client.post("/v1/recommend", json={"user": "ann", "items": items})
    return shown, client.post(
        "/v1/feedback", json={"decision": shown.json()["decision"], "reward": 1.0}
    )


@pytest.mark.parametrize("kind", [MemoryError, NumericalError])
def test_a_reward_that_was_learned_in_part_is_answered_with_503_and_counts_once_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    settings = local_settings(tmp_path)
    app, runner = local_app(settings)
    with serving(app) as client:
        learned = is_a(LocalNode, runner.node).server.observe

        def observe(row: int, x: Vector, y: float) -> None:
            learned(row, x, y)
            raise kind("in the middle")

        monkeypatch.setattr(is_a(LocalNode, runner.node).server, "observe", observe)
        shown, answer = visits(client)
        assert (shown.status_code, answer.status_code) == (200, 503)
        feedback = {"decision": shown.json()["decision"], "reward": 1.0}
        assert client.post("/v1/feedback", json=feedback).status_code == 503
        assert client.get("/readyz").status_code == 503
    app, runner = local_app(settings)
    with serving(app) as client:
        assert client.post("/v1/feedback", json=feedback).json() == {"counted": True}
        assert client.post("/v1/feedback", json=feedback).json() == {"counted": False}
    assert check_store(settings)["observations"] == 1


def test_a_global_server_inside_that_fails_takes_the_local_one_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GlobalNode, "receive", lambda *_: 1 // 0)
    model = Model(policy="cdp-fclub-dc", dim=DIM)
    app, runner = local_app(local_settings(tmp_path, model=model))
    with serving(app) as client:
        wait_for(lambda: client.get("/readyz").status_code == 503)
    assert runner.failure is not None
    assert isinstance(runner.failure.exception(), ZeroDivisionError)
