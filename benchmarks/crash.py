"""The crash drill: kill -9 broker, global and local servers under load, then count everything.

    python benchmarks/crash.py --kills 100

What must hold afterwards: every acknowledged reward is stored and learned once; what the global server
knows of a local server is what that server has released; own = released + waiting, exactly; every
message is in the ledger. A replay that would draw noise again fails at start, and with it the drill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fclub.client import AsyncClient
from fclub.errors import RequestFailed
from fclub.service.fleet import Fleet, Server
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import global_node, local_node
from fclub.service.settings import GlobalSettings, LocalSettings, Model

WORKERS_PER_SERVER = 3
USERS_PER_SERVER = 12
VISITS_BETWEEN_KILLS = 20
HEAL_SECONDS = 120.0
SOON: dict[str, Any] = {"unit": "event", "first_release": 4, "release_ratio": 1.5}


class DrillFailed(AssertionError):
    """Something was lost, counted twice, or not accounted for."""


@dataclass
class Drill:
    """A federation, its visitors and what they were promised."""

    folder: Path
    kills: int
    servers: int = 3
    dim: int = 5
    policy: str = "fclub-dc"
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    promised: dict[str, dict[str, float]] = field(default_factory=dict)
    attempted: dict[str, int] = field(default_factory=dict)
    killed: dict[str, int] = field(default_factory=dict)

    @property
    def model(self) -> Model:
        """Streams begin early, so that a drill of a few hundred visits has releases to lose."""
        soon = SOON if self.policy == "cdp-fclub-plus" else {}
        return Model(policy=self.policy, dim=self.dim, parameters=soon | self.parameters)

    def run(self) -> dict[str, Any]:
        """Play, kill, heal, stop, then open the stores and count."""
        start = time.monotonic()
        fleet = self._fleet()
        with fleet:
            asyncio.run(self._play(fleet))
        return self._count(fleet) | {"killed": self.killed, "seconds": time.monotonic() - start}

    def _fleet(self) -> Fleet:
        return Fleet(self.folder, self.servers, self.model, phase_seconds=1.0)

    async def _play(self, fleet: Fleet) -> None:
        async with AsyncExitStack() as stack:
            tasks = []
            for server in fleet.locals:
                client = AsyncClient(server.url, server.token, retries=0)
                await stack.enter_async_context(client)
                self.promised[server.name] = {}
                for worker in range(WORKERS_PER_SERVER):
                    tasks.append(asyncio.create_task(self._visit(server.name, client, worker)))
            await self._disturb(fleet)
            for task in tasks:
                task.cancel()
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(end, Exception):
                    raise end
            await self._heal(fleet)

    async def _visit(self, name: str, client: AsyncClient, worker: int) -> None:
        """Visits without end; only what was acknowledged is noted."""
        rng = np.random.default_rng([self.seed, worker, len(self.promised)])
        while True:
            rows = rng.standard_normal((4, self.dim))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            items = {str(k): row.tolist() for k, row in enumerate(rows)}
            user, reward = f"u{rng.integers(USERS_PER_SERVER)}", float(rng.integers(2))
            try:
                shown = await client.recommend(user, items)
                self.attempted[name] = self.attempted.get(name, 0) + 1
                await client.feedback(shown.decision, reward)
                self.promised[name][shown.decision] = reward
                if rng.random() < 0.1:
                    await client.feedback(shown.decision, reward)
            except RequestFailed as error:
                if error.status not in (0, 503):
                    raise
                await asyncio.sleep(0.05)

    async def _disturb(self, fleet: Fleet) -> None:
        choose = random.Random(self.seed)
        for _ in range(self.kills):
            await self._served(VISITS_BETWEEN_KILLS)
            await asyncio.sleep(choose.uniform(0.05, 1.0))
            victim: Any = choose.choice([fleet.broker, *fleet.servers])
            name = victim.name if isinstance(victim, Server) else "broker"
            self.killed[name] = self.killed.get(name, 0) + 1
            victim.kill()
            await asyncio.sleep(choose.uniform(0.0, 0.5))
            await asyncio.to_thread(victim.start)
            if isinstance(victim, Server):
                await asyncio.to_thread(victim.wait_until_ready)

    async def _served(self, visits: int) -> None:
        """Wait for so many more acknowledged visits: killing an idle federation shows nothing."""
        deadline, enough = time.monotonic() + HEAL_SECONDS, self._acknowledged() + visits
        while self._acknowledged() < enough:
            if time.monotonic() > deadline:
                raise DrillFailed(f"no {visits} visits within {HEAL_SECONDS:g} s")
            await asyncio.sleep(0.01)

    def _acknowledged(self) -> int:
        return sum(map(len, self.promised.values()))

    async def _heal(self, fleet: Fleet) -> None:
        """Wait until every message is confirmed on both sides."""
        deadline = time.monotonic() + HEAL_SECONDS
        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(AsyncClient(fleet.hub.url, fleet.token))
            locals_ = [
                await stack.enter_async_context(AsyncClient(s.url, fleet.token)) for s in fleet.locals
            ]
            while time.monotonic() < deadline:
                peers = await hub.request("GET", "/v1/servers")
                ends = [await client.request("GET", "/v1/link") for client in locals_]
                if all(_agree(peers[end["name"]], end) for end in ends):
                    return
                await asyncio.sleep(0.2)
        raise DrillFailed(f"not healed after {HEAL_SECONDS:g} s: {peers} {ends}")

    def _count(self, fleet: Fleet) -> dict[str, Any]:
        names = [server.name for server in fleet.locals]
        store = str(self.folder / "global.db")
        hub = global_node(GlobalSettings(model=self.model, store=store, servers=names))
        result: dict[str, Any] = {"acknowledged": 0, "observations": 0, "released": 0, "waiting": 0}
        for name in names:
            store = str(self.folder / f"{name}.db")
            node = local_node(LocalSettings(model=self.model, name=name, store=store))
            for key, value in self._check(node, hub, self.promised[name]).items():
                result[key] += value
            node.store.close()
        hub.store.close()
        return result

    def _check(self, node: LocalNode, hub: GlobalNode, promised: dict[str, float]) -> dict[str, int]:
        rewarded, find = node.decisions.rewarded(), node.decisions.find
        found = {key: find(bytes.fromhex(key)) for key in promised}
        lost = [key for key, shown in found.items() if not shown or shown.reward != promised[key]]
        server, number = node.server, hub.peers[node.name].number
        own = int(server.counts.sum())
        waiting, released = server.waiting, hub.server.released_by(number)
        lines = sum(node.books.messages().values())
        facts = {
            "acknowledged rewards lost": len(lost),
            "rewards stored but not learned once": abs(rewarded - own),
            "observations neither released nor waiting": abs(own - released - waiting),
            "messages not written down": abs(node.books.sent - lines),
            "messages missing in the ledger": node.books.unaccounted(),
            "messages not confirmed": node.channel.sent - node.channel.confirmed,
        }
        wrong = {text: count for text, count in facts.items() if count}
        if wrong:
            raise DrillFailed(f"{node.name}: {wrong}")
        return {
            "acknowledged": len(promised),
            "observations": own,
            "released": released,
            "waiting": waiting,
        }


def _agree(peer: dict[str, Any], end: dict[str, Any]) -> bool:
    """Do both ends of a channel know of all messages, and is no report waiting for its plan?"""
    up = end["sent"] == end["confirmed"] == peer["received"]
    down = peer["sent"] == peer["confirmed"] == end["received"]
    return up and down and end["state"] == "agreed" and not end["unanswered"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--policy", default="fclub-dc")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", type=json.loads, default={}, help="parameters of the policy, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = {"policy": given.policy, "seed": given.seed, "parameters": given.set}
        drill = Drill(Path(folder), given.kills, **told)
        print(json.dumps(drill.run()))
