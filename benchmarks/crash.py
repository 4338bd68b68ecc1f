"""The crash drill: kill -9 broker, global and local servers under load, then count everything.

    python benchmarks/crash.py --kills 100 [--slots]

With `--slots` six servers of a hundred users add up in secret, and kills come while they do.

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
import sqlite3
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fclub.client import AsyncClient
from fclub.cohorts.hub import HubRecord, Stage
from fclub.cohorts.member import MemberRecord
from fclub.environments.logs import read_log
from fclub.errors import RequestFailed
from fclub.privacy.plan import MOST_SLOTS, Plan, make_plan
from fclub.service.fleet import Fleet, Server
from fclub.service.nodes.cohorts import RECORD
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
    kills_at: list[tuple[str, float]] = field(default_factory=list)
    borne: tuple[int, ...] = (0, 503)
    users: int = USERS_PER_SERVER

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
            user, reward = f"u{rng.integers(self.users)}", float(rng.integers(2))
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
            await self._pause(choose)
            victim: Any = choose.choice([fleet.broker, *fleet.servers])
            name = victim.name if isinstance(victim, Server) else "broker"
            self.killed[name] = self.killed.get(name, 0) + 1
            self.kills_at.append((name, time.time()))
            victim.kill()
            await asyncio.sleep(choose.uniform(0.0, 0.5))
            await asyncio.to_thread(victim.start)
            if isinstance(victim, Server):
                await asyncio.to_thread(victim.wait_until_ready)

    async def _pause(self, choose: random.Random) -> None:
        await asyncio.sleep(choose.uniform(0.05, 1.0))

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
            "observations neither released nor waiting": self._astray(own, released, waiting),
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

    def _astray(self, own: int, released: int, waiting: int) -> int:
        return abs(own - released - waiting)

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


@dataclass
class SlotDrill(Drill):
    """Secure sums: what was charged, sent and summed has to agree, whoever was killed when."""

    servers: int = 6
    policy: str = POLICY
    users: int = 100
    gap: float = 16.0
    """Seconds between slots."""

    @cached_property
    def plan(self) -> Plan:
        """A slot for every kill, and some to begin and to end with."""
        slots = min(MOST_SLOTS, 2 * self.kills + 10)
        return make_plan(
            epsilon=1.0,
            delta=1e-5,
            dim=self.dim,
            users=self.users * self.servers,
            members=self.servers,
            visits=tuple(0.1 * slot for slot in range(1, slots + 1)),
            start=time.time() + 30.0,
            seconds_per_visit=self.gap / 0.1,
            tolerance=0.0,
        )

    @property
    def model(self) -> Model:
        own: dict[str, Any] = {"plan": self.plan.encode().decode()}
        return Model(policy=self.policy, dim=self.dim, uniform=UNIFORM, parameters=own)

    async def _pause(self, choose: random.Random) -> None:
        """Until some time at which servers agree, draw and send, while there are slots."""
        half, now = 0.5 * self.plan.window, time.time()
        open_ = next((at for at in self.plan.begins if at + half > now), now)
        await asyncio.sleep(choose.uniform(max(0.0, open_ - now), max(0.0, open_ + half - now)))

    async def _heal(self, fleet: Fleet) -> None:
        """One more slot with everybody, then as always."""
        after = [at for at in self.plan.begins if at > time.time()]
        for at in after[:1]:
            await asyncio.sleep(at + self.plan.window - time.time() + 1.0)
        await super()._heal(fleet)

    def _astray(self, own: int, released: int, waiting: int) -> int:
        """No number of observations is told to anybody."""
        return abs(released)

    def _count(self, fleet: Fleet) -> dict[str, Any]:
        found, names = super()._count(fleet), [server.name for server in fleet.locals]
        hub = self._record("global", HubRecord)
        records = {name: self._record(name, MemberRecord) for name in names}
        sums = {view.slot: view for view in hub.slots if view.stage is Stage.SUMMED}
        store = str(self.folder / "global.db")
        node: Any = global_node(GlobalSettings(model=self.model, store=store, servers=names))
        released = [one.slot for one in node.server.exchange.transcript.releases]
        node.store.close()
        wrong: list[str] = []
        if released != sorted(set(released)) or set(released) != set(sums):
            wrong.append(f"slots {released} were released, {sorted(sums)} summed")
        for name, record in records.items():
            slots = [charge.slot for charge in record.charges]
            local: Any = local_node(
                LocalSettings(model=self.model, name=name, store=str(self.folder / f"{name}.db"))
            )
            charged = sum(stream.sequence for stream in local.books.ledger.streams.values())
            local.store.close()
            if len(slots) != len(set(slots)):
                wrong.append(f"{name} has charged a slot twice: {slots}")
            sent = {charge.slot: charge.roster for charge in record.charges if not charge.presumed}
            if charged < len(sent):
                wrong.append(f"the ledger of {name} has {charged} slots, and {len(sent)} were sent")
            for slot, view in sums.items():
                if name in view.ready and sent.get(slot) != view.roster:
                    wrong.append(f"slot {slot} holds {name}, which has not charged it")
                if name not in view.ready and sent.get(slot) == view.roster:
                    wrong.append(f"slot {slot} lacks {name}, which has sent")
        lost = [view for view in hub.slots if view.stage is Stage.NOT_SUMMED and view.roster]
        for view in lost:
            begins = self.plan.begins[view.slot]
            inside = {who for who, at in self.kills_at if begins <= at < begins + self.gap}
            if not inside & {*view.missing, "global", "broker"}:
                wrong.append(f"slot {view.slot} was lost, and nobody of {view.missing} had died")
        if wrong:
            raise DrillFailed("; ".join(wrong))
        kept = {"slots summed": len(sums), "slots lost": len(lost), "left out": list(hub.left_out)}
        return found | kept

    def _record(self, name: str, kind: type[Any]) -> Any:
        database = sqlite3.connect(self.folder / f"{name}.db")
        (value,) = database.execute("SELECT value FROM meta WHERE key = ?", [RECORD]).fetchone()
        database.close()
        return msgspec.json.decode(value, type=kind)


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
    parser.add_argument("--slots", action="store_true", help="kill during secure sums")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = {"policy": given.policy, "seed": given.seed, "parameters": given.set or {}}
        drill = (SlotDrill if given.slots else Drill)(Path(folder), given.kills, **told)
        print(json.dumps(drill.run()))
