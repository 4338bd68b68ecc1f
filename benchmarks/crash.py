"""The crash drill: kill -9 broker, global and local servers under load, then count everything.

    python benchmarks/crash.py --kills 100

What must hold afterwards: every acknowledged reward is stored and learned once; what the global server
knows of a local server is what that server has released; own = released + waiting, exactly; every
message is in the ledger. A replay that would draw noise again fails at start, and with it the drill.
Meanwhile every server's catalogue changes: what was acknowledged last of an item must be there, and
every decision can be exported with the features that were on offer.
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
from fclub.environments.logs import read_log
from fclub.errors import RequestFailed
from fclub.service.fleet import Fleet, Server
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import global_node, local_node
from fclub.service.settings import POLICY, GlobalSettings, LocalSettings, Model
from fclub.service.store.export import export_log

WORKERS_PER_SERVER = 3
USERS_PER_SERVER = 12
VISITS_BETWEEN_KILLS = 20
HEAL_SECONDS = 120.0
ITEMS, ALWAYS = 30, 5
"""Items of a catalogue that come and go; the first ones are replaced but never deleted."""
UNIFORM = 0.2
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
    shelf: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    killed: dict[str, int] = field(default_factory=dict)
    borne: tuple[int, ...] = (0, 503)

    @property
    def model(self) -> Model:
        """Streams begin early, so that a drill of a few hundred visits has releases to lose."""
        soon = SOON if self.policy == "cdp-fclub-plus" else {}
        own = soon | self.parameters
        return Model(policy=self.policy, dim=self.dim, uniform=UNIFORM, parameters=own)

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
                self.promised[server.name], self.shelf[server.name] = {}, {}
                first = {f"item-{k}": [0.1 * k] * self.dim for k in range(ALWAYS)}
                await client.put_items(first)
                self.shelf[server.name] |= {key: [row] for key, row in first.items()}
                tasks.append(asyncio.create_task(self._restock(server.name, client)))
                for worker in range(WORKERS_PER_SERVER):
                    tasks.append(asyncio.create_task(self._visit(server.name, client, worker)))
            await self._disturb(fleet)
            for task in tasks:
                task.cancel()
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(end, Exception):
                    raise end
            await self._heal(fleet)

    async def _restock(self, name: str, client: AsyncClient) -> None:
        """Put and delete items without end; `shelf` has what each may be: one value if acknowledged."""
        rng, shelf = np.random.default_rng([self.seed, len(self.shelf)]), self.shelf[name]
        while True:
            k = int(rng.integers(ITEMS))
            key, gone = f"item-{k}", k >= ALWAYS and rng.random() < 0.3
            row = None if gone else (rng.random(self.dim) / self.dim).tolist()
            shelf[key] = [*shelf.get(key, [None]), row]
            try:
                if row is not None:
                    await client.put_items({key: row})
                else:
                    await client.delete_item(key)
                shelf[key] = [row]
            except RequestFailed as error:
                if error.status == 404:  # it is gone already
                    shelf[key] = [None]
                elif error.status not in (0, 503):
                    raise
                else:
                    await asyncio.sleep(0.05)

    async def _visit(self, name: str, client: AsyncClient, worker: int) -> None:
        """Visits without end; only what was acknowledged is noted."""
        rng = np.random.default_rng([self.seed, worker, len(self.promised)])
        while True:
            rows = rng.standard_normal((4, self.dim))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            own = {str(k): row.tolist() for k, row in enumerate(rows)}
            items = own if rng.random() < 0.5 else None
            user, reward = f"u{rng.integers(USERS_PER_SERVER)}", float(rng.integers(2))
            try:
                shown = await client.recommend(user, items, exclude_seen=False)
                self.attempted[name] = self.attempted.get(name, 0) + 1
                await client.feedback(shown.decision, reward)
                self.promised[name][shown.decision] = reward
                if rng.random() < 0.1:
                    await client.feedback(shown.decision, reward)
            except RequestFailed as error:
                if error.status not in self.borne:
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
        waiting, released = server.status().waiting, hub.server.released_by(number)
        lines = sum(node.books.messages().values())
        facts = {
            "acknowledged rewards lost": len(lost),
            "rewards stored but not learned once": abs(rewarded - own),
            "observations neither released nor waiting": abs(own - released - waiting),
            "messages not written down": abs(node.books.sent - lines),
            "messages missing in the ledger": node.books.unaccounted(),
            "messages not confirmed": node.sessions.channel.sent - node.sessions.channel.confirmed,
            "items not as acknowledged": self._misplaced(node),
            "decisions that cannot be exported": rewarded - self._exported(node),
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

    def _misplaced(self, node: LocalNode) -> int:
        """Items of the catalogue that are not what they may be."""
        found = {key: node.catalogue.features(key) for key in self.shelf[node.name]}
        there = {key: None if row is None else row.tolist() for key, row in found.items()}
        return sum(there[key] not in allowed for key, allowed in self.shelf[node.name].items())

    def _exported(self, node: LocalNode) -> int:
        """Rounds of an export, each of which is read again with its offer."""
        log, items = (self.folder / f"{node.name}.{end}" for end in ("jsonl", "csv"))
        export_log(node.store.path, log, items)
        return len(read_log(log, items))


def _agree(peer: dict[str, Any], end: dict[str, Any]) -> bool:
    """Do both ends of a channel know of all messages, and is no report waiting for its plan?"""
    up = end["sent"] == end["confirmed"] == peer["received"]
    down = peer["sent"] == peer["confirmed"] == end["received"]
    return up and down and end["state"] == "agreed" and not end["unanswered"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--policy", default=POLICY)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", type=json.loads, help="parameters of the policy, as JSON")
    given = parser.parse_args()
    if given.set is None:
        given.set = {"few": 5, "types": 4} if given.policy == POLICY else {}  # a dozen users release
    with tempfile.TemporaryDirectory() as folder:
        told = {"policy": given.policy, "seed": given.seed, "parameters": given.set}
        drill = Drill(Path(folder), given.kills, **told)
        print(json.dumps(drill.run()))
