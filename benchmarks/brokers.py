"""The drill of a cluster of three brokers: kill, cut off and damage them under load, then count.

    python -m benchmarks.brokers killed

What must hold is what the restore drill asks. After every disturbance new messages have to arrive in
both directions from and to every local server, and to be confirmed; how long that took is recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster import SIZE, Cluster
from benchmarks.crash import HEAL_SECONDS, DrillFailed
from benchmarks.restore import RestoreDrill

from fclub.client import AsyncClient
from fclub.errors import RequestFailed
from fclub.service.fleet import Fleet
from fclub.service.link.streams import UP_STREAM

CASES = ("killed", "partitioned", "truncated", "flipped", "deleted", "all-deleted")
VISITS = 60
OFTEN = {"ratio": 1.02}
"""Servers speak after every few visits, so that what does not arrive is noticed."""


@dataclass
class BrokerDrill(RestoreDrill):
    """One kind of disturbance, for each of some brokers in turn and once more for the leader."""

    case: str = "killed"
    victims: int = SIZE
    parameters: dict[str, Any] = field(default_factory=lambda: dict(OFTEN))
    back_after: dict[str, float] = field(default_factory=dict)
    current_after: dict[str, float] = field(default_factory=dict)

    def _fleet(self) -> Fleet:
        fleet = Fleet(
            self.folder, self.servers, self.model, Cluster, phase_seconds=1.0, nats__replicas=SIZE
        )
        assert isinstance(fleet.broker, Cluster)
        self.cluster = fleet.broker
        if self.case == "partitioned":
            self.own = [self.cluster.wire(node.port) for node in self.cluster.nodes]
            seen = ",".join(f"nats://127.0.0.1:{wire.port}" for wire in self.own)
            fleet.locals[0].settings["nats__url"] = seen
        return fleet

    async def _disturb(self, fleet: Fleet) -> None:
        await self._served(2 * VISITS)
        await self._back(fleet, "start")
        if self.case == "partitioned":
            await self._partition(fleet)
            return
        for number in range(self.victims):
            await self._lose(fleet, number, f"node {number}")
        leader = self.cluster.leader(UP_STREAM)
        assert leader is not None
        await self._lose(fleet, leader, f"leader (node {leader})")

    async def _lose(self, fleet: Fleet, number: int, what: str) -> None:
        """A broker dies, the others go on; it comes back, perhaps with damaged files."""
        node = self.cluster.nodes[number]
        node.kill()
        self.killed[what] = self.killed.get(what, 0) + 1
        await self._back(fleet, f"{what} gone")
        damage = DAMAGES.get(self.case)
        if damage is not None:
            touched = await asyncio.to_thread(damage, node.folder / "jetstream")
            if not touched:
                raise DrillFailed(f"{node.folder} has no files to damage")
        await asyncio.to_thread(node.start)
        await self._back(fleet, f"{what} here again")
        if damage is not None and await self._current(number, what):
            # Now the damaged one may have to lead.
            other = self.cluster.nodes[(number + 1) % SIZE]
            other.kill()
            await self._back(fleet, f"the one after {what} gone")
            await asyncio.to_thread(other.start)
            await self._back(fleet, f"the one after {what} here again")

    async def _current(self, number: int, what: str) -> bool:
        """Wait until a broker has caught up: before, the loss of another would be one too many."""
        start = time.monotonic()
        while time.monotonic() < start + HEAL_SECONDS:
            if await asyncio.to_thread(self.cluster.current, number):
                self.current_after[what] = round(time.monotonic() - start, 2)
                return True
            await asyncio.sleep(0.2)
        self.current_after[what] = float("inf")
        return False

    async def _partition(self, fleet: Fleet) -> None:
        """A local server sees one broker only; then that one is cut off from the others too."""
        for number in range(self.victims):
            for k, wire in enumerate(self.own):
                if k != number:
                    wire.cut()
            await self._back(fleet, f"s0 sees node {number} only")
            self.cluster.isolate(number)
            await self._served(VISITS)
            for wire in self.own:
                wire.mend()
            await self._back(fleet, f"s0 may leave node {number}, which is cut off")
            self.cluster.join()
            await self._back(fleet, f"node {number} joined again")
            await self._current(number, f"node {number}")

    async def _back(self, fleet: Fleet, what: str) -> None:
        """Wait until new messages have arrived in both directions everywhere, and are confirmed."""
        start, before = time.monotonic(), dict[str, tuple[int, int]]()
        while time.monotonic() < start + HEAL_SECONDS:
            now = await self._heard(fleet)
            if now and not before:
                before = now
            if now and all(min(a - b for a, b in zip(now[k], before[k], strict=True)) > 0 for k in now):
                self.back_after[what] = round(time.monotonic() - start, 2)
                return
            await asyncio.sleep(0.05)
        raise DrillFailed(f"{what}: silence for {HEAL_SECONDS:g} s: {before} {now}")

    async def _heard(self, fleet: Fleet) -> dict[str, tuple[int, int]]:
        """Messages of each local server that have arrived, and to it that it has confirmed."""
        try:
            async with AsyncClient(fleet.hub.url, fleet.token, retries=0) as hub:
                peers = await hub.request("GET", "/v1/servers")
        except RequestFailed:
            return {}
        return {name: (peer["received"], peer["confirmed"]) for name, peer in peers.items()}

    def run(self) -> dict[str, Any]:
        found = super().run()
        times = {"back_after": self.back_after, "current_after": self.current_after}
        return found | {"slowest": max(self.back_after.values())} | times


def _blocks(store: Path) -> list[Path]:
    """Files of messages, of streams and of their agreement."""
    return [file for file in store.rglob("*.blk") if file.stat().st_size > 0]


def _truncate(store: Path) -> int:
    for file in _blocks(store):
        with file.open("r+b") as handle:
            handle.truncate(file.stat().st_size // 2)
    return len(_blocks(store))


def _flip(store: Path) -> int:
    """A wrong byte in the middle of every file."""
    for file in _blocks(store):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
    return len(_blocks(store))


def _delete(store: Path) -> int:
    """The streams and their consumers; what the brokers have agreed on stays."""
    found = [folder for folder in store.rglob("streams/*") if folder.is_dir()]
    for folder in found:
        shutil.rmtree(folder)
    return len(found)


def _delete_all(store: Path) -> int:
    shutil.rmtree(store)
    return 1


DAMAGES: dict[str, Callable[[Path], int]] = {
    "truncated": _truncate,
    "flipped": _flip,
    "deleted": _delete,
    "all-deleted": _delete_all,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(BrokerDrill(Path(folder), kills=0, case=given.case).run(), indent=1))
