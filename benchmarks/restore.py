"""The restore drill: lose a disk under load, put a backup or an empty disk in its place, then count.

    python -m benchmarks.restore local-restored

What must hold afterwards: the federation works again without a person; every reward that was
acknowledged before the backup, or to a server whose disk was not lost, is stored and learned once; the
global server knows of no more observations than there were; the ledger charges what a lost copy may
have released.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.crash import HEAL_SECONDS, VISITS_BETWEEN_KILLS, Drill, DrillFailed, _agree

from fclub.client import AsyncClient
from fclub.errors import RequestFailed
from fclub.service.fleet import Fleet, Server
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.local_node import LocalNode
from fclub.service.store.backup import backup_store, restore_store

CASES = (
    "local-restored",
    "local-copied",
    "local-replaced",
    "global-restored",
    "global-replaced",
    "broker-lost",
)
VISITS = 150
DRAIN_SECONDS = 1.0
"""Time for visitors to read the last answers of a server that was killed."""


@dataclass
class RestoreDrill(Drill):
    """One disaster in the middle of the visits."""

    policy: str = "cdp-fclub-plus"
    case: str = "local-restored"
    seconds_to_agree: float = 0.0
    behind: set[str] = field(default_factory=set)

    async def _disturb(self, fleet: Fleet) -> None:
        await self._served(VISITS)
        victim: Any = fleet.broker
        if self.case != "broker-lost":
            victim = fleet.locals[0] if self.case.startswith("local") else fleet.hub
        kept = self.folder / "backup.db"
        survives = {name: dict(promised) for name, promised in self.promised.items()}
        if isinstance(victim, Server):
            await asyncio.to_thread(backup_store, Path(victim.settings["store"]), kept)
        await self._served(VISITS)
        victim.kill()
        await asyncio.sleep(DRAIN_SECONDS)
        if isinstance(victim, Server):
            self._replace(Path(victim.settings["store"]), kept)
            if self.case in ("local-restored", "local-copied"):
                self.behind.add(victim.name)
            if victim is not fleet.hub:
                self.promised[victim.name] = (
                    survives[victim.name] if "replaced" not in self.case else {}
                )
        else:
            shutil.rmtree(self.folder / "nats" / "jetstream")
        if self.case == "local-replaced":
            self.borne += (200,)  # there is nothing to choose from until items are put again
        start = time.monotonic()
        await asyncio.to_thread(victim.start)
        if isinstance(victim, Server):
            await asyncio.to_thread(victim.wait_until_ready)
        await self._wait_until_agreed(fleet)
        self.seconds_to_agree = time.monotonic() - start
        await self._served(VISITS)

    def _replace(self, store: Path, kept: Path) -> None:
        for file in store.parent.glob(f"{store.name}*"):
            file.unlink()
        if self.case.endswith("restored"):
            restore_store(kept, store)
        elif self.case.endswith("copied"):
            shutil.copy(kept, store)

    async def _wait_until_agreed(self, fleet: Fleet) -> None:
        """Every local server has agreed on its session since the disaster."""
        deadline = time.monotonic() + HEAL_SECONDS
        while time.monotonic() < deadline:
            if await self._agreed(fleet):
                return
            await asyncio.sleep(0.05)
        raise DrillFailed(f"no agreement after {HEAL_SECONDS:g} s")

    async def _agreed(self, fleet: Fleet) -> bool:
        async with AsyncClient(fleet.hub.url, fleet.token, retries=0) as hub:
            try:
                peers = await hub.request("GET", "/v1/servers")
                for server in fleet.locals:
                    async with AsyncClient(server.url, fleet.token, retries=0) as client:
                        end = await client.request("GET", "/v1/link")
                        same = end["session"] == peers[end["name"]]["session"]
                        if end["state"] != "agreed" or not same or not _agree(peers[server.name], end):
                            return False
            except RequestFailed:
                return False
        return True

    def _check(self, node: LocalNode, hub: GlobalNode, promised: dict[str, float]) -> dict[str, int]:
        find, peer = node.decisions.find, hub.peers[node.name]
        found = {key: find(bytes.fromhex(key)) for key in promised}
        gone = [key for key, shown in found.items() if not shown or shown.reward != promised[key]]
        own, ledger = int(node.server.counts.sum()), node.books.ledger
        released = hub.server.released_by(peer.number)
        behind = node.name in self.behind
        facts = {
            "acknowledged rewards lost": len(gone),
            "rewards stored but not learned once": abs(node.decisions.rewarded() - own),
            "observations that count twice": max(0, released - self.attempted[node.name]),
            "offences": peer.offences,
            "messages missing in the ledger": node.books.unaccounted(),
            "an old store that does not know it": int(behind != (node.sessions.era > 0)),
        }
        if ledger is not None and behind:
            lost = [name for name in ledger.streams if "/lost/" in name]
            facts["releases of a lost copy that are not charged"] = int(not lost)
        wrong = {text: count for text, count in facts.items() if count}
        if wrong:
            raise DrillFailed(f"{node.name}: {wrong}")
        waiting = node.server.status().waiting
        return {
            "acknowledged": len(promised),
            "observations": own,
            "released": released,
            "waiting": waiting,
        }

    def run(self) -> dict[str, Any]:
        return super().run() | {"case": self.case, "seconds_to_agree": self.seconds_to_agree}


@dataclass
class CrashesAndRestores(RestoreDrill):
    """Kill as the crash drill does; now and then a server comes back with a backup instead."""

    case: str = "crashes-restored"

    async def _disturb(self, fleet: Fleet) -> None:
        choose, kept = random.Random(self.seed), dict[str, tuple[Path, dict[str, float]]]()
        for number in range(self.kills):
            await self._served(VISITS_BETWEEN_KILLS)
            victim: Any = choose.choice([fleet.broker, *fleet.servers])
            name = victim.name if isinstance(victim, Server) else "broker"
            store = Path(victim.settings["store"]) if isinstance(victim, Server) else None
            if store is not None and choose.random() < 0.5:
                kept[name] = self.folder / f"{name}-{number}.backup", dict(self.promised.get(name, {}))
                await asyncio.to_thread(backup_store, store, kept[name][0])
                await self._served(VISITS_BETWEEN_KILLS)
            victim.kill()
            self.killed[name] = self.killed.get(name, 0) + 1
            if store is not None and name in kept and choose.random() < 0.5:
                await asyncio.sleep(DRAIN_SECONDS)
                self._replace(store, kept[name][0])
                self.killed["restored"] = self.killed.get("restored", 0) + 1
                if name in self.promised:
                    self.promised[name] = dict(kept[name][1])
                    self.behind.add(name)
            await asyncio.to_thread(victim.start)
            if store is not None:
                await asyncio.to_thread(victim.wait_until_ready)
        start = time.monotonic()
        await self._wait_until_agreed(fleet)
        self.seconds_to_agree = time.monotonic() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=[*CASES, "crashes-restored"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--policy", default="cdp-fclub-plus")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kind = CrashesAndRestores if given.case == "crashes-restored" else RestoreDrill
        drill = kind(Path(folder), kills=given.kills, policy=given.policy, case=given.case)
        print(json.dumps(drill.run()))
