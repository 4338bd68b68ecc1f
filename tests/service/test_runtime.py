"""A runner ends when it is told to, and says so when it cannot go on."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from fclub.service.direct import DirectWire
from fclub.service.local_node import GLOBAL, LocalNode
from fclub.service.monitoring import Monitor
from fclub.service.parts import local_node
from fclub.service.runtime import NotStored, Runner
from fclub.service.settings import LocalSettings, Model
from fclub.service.tasks import end


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


def test_nothing_to_end_is_no_error() -> None:
    asyncio.run(end())


def runner_of(folder: Path) -> tuple[LocalNode, Runner]:
    node = local_node(LocalSettings(model=Model(policy="fclub-dc", dim=2), store=str(folder / "s.db")))
    board: dict[str, DirectWire] = {}
    DirectWire(GLOBAL, board)
    return node, Runner(node, DirectWire(node.name, board), Monitor("local"))


async def breaks_down(folder: Path) -> None:
    """The disk fails between two commits."""
    node, runner = runner_of(folder)
    await runner.start()
    node.changes.write("INSERT INTO no_such_table VALUES (?)", 1)
    with pytest.raises(NotStored, match="no_such_table"):
        await runner.commit()
    with pytest.raises(NotStored, match="no_such_table"):
        await runner.commit()
    assert runner.failure is not None
    assert isinstance(runner.failure.exception(), sqlite3.OperationalError)
    await runner.stop()


def test_after_a_failed_commit_nothing_is_acknowledged_and_the_runner_still_stops(
    tmp_path: Path,
) -> None:
    asyncio.run(asyncio.wait_for(breaks_down(tmp_path), 30))


def test_an_unexpected_error_while_applying_a_frame_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> BaseException | None:
        node, runner = runner_of(tmp_path)
        monkeypatch.setattr(node, "receive", lambda sender, data: 1 // 0)
        await runner.start()
        await runner.wire._board[GLOBAL].send(node.name, b"", None)  # type: ignore[attr-defined]
        assert runner.failure is not None
        await asyncio.wait({runner.failure}, timeout=30)
        with pytest.raises(NotStored):
            await runner.commit()
        await runner.stop()
        return runner.failure.exception()

    assert isinstance(asyncio.run(main()), ZeroDivisionError)
