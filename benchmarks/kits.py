"""The drill of kits: organisations join and leave a running federation under load, then count.

    python -m benchmarks.kits

Broker, global server and local servers are processes, with TLS, and every step is a command that
operators give. Three organisations begin; a fourth joins and the first leaves while the others are
visited; another one is suspended, resumed and given a new certificate. What must hold afterwards: no
process was restarted; both ends of every link have heard the same messages in the same order (equal
chains, so that none was lost and none applied twice); every acknowledged reward is stored once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from fclub.service.fleet import Server
from fclub.service.kits.folder import Folder
from fclub.service.kits.kit import read_kit
from fclub.service.link.broker import find_broker, free_port
from fclub.service.link.channel import GLOBAL, Channel
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.parts import global_node, local_node
from fclub.service.settings import GlobalSettings, LocalSettings, load_settings

DIM = 4
TOKEN = "drill"
QUIET_SECONDS = 60.0


class DrillFailed(AssertionError):
    """What must hold does not."""


def command(*words: str) -> str:
    """An operator's command; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fclub", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DrillFailed(f"fclub {' '.join(words)}: {done.stderr}")
    return done.stdout


@dataclass
class KitDrill:
    folder: Path
    policy: str = "fclub-plus"
    visits: int = 40
    seconds: dict[str, float] = field(default_factory=dict)
    rewards: dict[str, int] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path = self.folder / "federation"
        self._visitors: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self._faults: list[str] = []

    def run(self) -> dict[str, Any]:
        begin = time.monotonic()
        port, words = str(free_port()), ("--set", f"model.policy={self.policy}")
        command(
            *("federation", "init", str(self.path), "--name", "drill"),
            *("--dim", str(DIM), "--port", port, *words),
        )
        broker = self._start_broker()
        try:
            self._start_global()
            for name in ("north", "south", "east"):
                self._join(name)
            self._until_known("north", "south", "east")
            self.seconds["three organisations"] = time.monotonic() - begin
            self._change()
            for name in list(self._visitors):
                self._leave_alone(name)
            self._until_quiet("south", "east", "west")
            if broker.poll() is not None:
                raise DrillFailed("the broker has ended")
            for server in self.servers.values():
                server.check()
        finally:
            for name in list(self._visitors):
                self._leave_alone(name)
            for server in self.servers.values():
                server.stop()
            broker.terminate()
            broker.wait()
        if self._faults:
            raise DrillFailed(self._faults[0])
        return self._count()

    def _change(self) -> None:
        """A fourth joins, the first leaves, and one pauses, all under load."""
        begin = time.monotonic()
        self._join("west")
        self._until_known("west")
        self.seconds["a fourth joins"] = time.monotonic() - begin
        self._leave_alone("north")
        begin = time.monotonic()
        command("federation", "remove", str(self.path), "north")
        self._until(lambda: self._view("north")["state"] == "retired", "north to be retired")
        self.seconds["one leaves"] = time.monotonic() - begin
        command("federation", "suspend", str(self.path), "east")
        self._served("south", self.visits)
        command("federation", "resume", str(self.path), "east")
        command("federation", "rotate", str(self.path), "south")
        self._hand_over("south")
        process = self.servers["south"].process
        assert process is not None
        os.kill(process.pid, signal.SIGHUP)
        for name in ("south", "east", "west"):
            self._served(name, self.visits)

    def _start_broker(self) -> subprocess.Popen[bytes]:
        with (self.folder / "nats.log").open("ab") as output:
            words = [find_broker(), "--config", str(self.path / "nats.conf")]
            process = subprocess.Popen(words, stdout=output, stderr=output)
        self._until(lambda: (self.path / "nats.pid").exists(), "the broker")
        return process

    def _start_global(self) -> None:
        options = ("--federation", str(self.path))
        self._start(Server("global", GLOBAL, self.folder, {}, TOKEN, options=options))

    def _join(self, name: str) -> None:
        """Its operator gets the kit, starts a server with it, and visitors come."""
        home = self.folder / name
        home.mkdir()
        secret, public = home / "identity", home / "public.json"
        command("identity", str(secret), "--name", name, "--organisation", f"{name} Ltd")
        public.write_text(command("identity", str(secret), "--json"))
        command("federation", "add", str(self.path), name, "--key", str(public))
        kit, store = str(self._hand_over(name)), str(home / "local.db")
        options = ("--kit", kit, "--store", store, "--identity", str(secret))
        self._start(Server("local", name, home, {}, TOKEN, options=options))
        ended = threading.Event()
        thread = threading.Thread(target=self._visit, args=(name, ended))
        self._visitors[name] = thread, ended
        thread.start()

    def _hand_over(self, name: str) -> Path:
        return Path(shutil.copy(self.path / f"{name}.kit", self.folder / name))

    def _start(self, server: Server) -> None:
        self.servers[server.name] = server
        server.start()
        server.wait_until_ready()

    def _visit(self, name: str, ended: threading.Event) -> None:
        self.rewards[name] = 0
        try:
            for _ in visits(self.servers[name].url, TOKEN, name):
                self.rewards[name] += 1
                if ended.wait(0.02):
                    return
        except DrillFailed as error:
            self._faults.append(str(error))

    def _leave_alone(self, name: str) -> None:
        thread, ended = self._visitors.pop(name)
        ended.set()
        thread.join()

    def _served(self, name: str, visits: int) -> None:
        wanted = self.rewards[name] + visits
        self._until(lambda: self._faults != [] or self.rewards[name] >= wanted, f"visits of {name}")

    def _views(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.get(f"{self.servers[GLOBAL].url}/v1/servers", headers=headers, timeout=60)
        found: dict[str, Any] = answer.json()
        return found

    def _view(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._views().get(name, {"session": 0, "state": ""})
        return found

    def _until_known(self, *names: str) -> None:
        """The global server has a session with them and has heard something in it."""
        for name in names:
            self._until(lambda name=name: self._view(name).get("received", 0) > 0, f"word of {name}")

    def _until_quiet(self, *names: str) -> None:
        """Nothing is on its way to or from these."""
        for name in names:
            self._until(lambda name=name: self._is_quiet(name), f"quiet of {name}")

    def _is_quiet(self, name: str) -> bool:
        page, headers = f"{self.servers[name].url}/v1/link", {"Authorization": f"Bearer {TOKEN}"}
        own, view = httpx.get(page, headers=headers, timeout=60).json(), self._view(name)
        up = own["sent"] == own["confirmed"] == view["received"]
        return bool(up and view["sent"] == view["confirmed"] == own["received"])

    def _until(self, what: Any, name: str) -> None:
        deadline = time.monotonic() + QUIET_SECONDS
        while not what():
            if time.monotonic() > deadline:
                raise DrillFailed(f"waited {QUIET_SECONDS:g} s for {name}")
            time.sleep(0.05)

    def _count(self) -> dict[str, Any]:
        """Read all stores, and compare what both ends of every link have heard."""
        hub, messages = read_hub(self.path), 0
        for name, rewards in self.rewards.items():
            home = self.folder / name
            messages += count(hub, home / f"{name}.kit", home / "local.db", rewards)
        hub.store.close()
        return {
            "seconds": {what: round(took, 1) for what, took in self.seconds.items()},
            "rewards": self.rewards,
            "messages": messages,
        }


def visits(url: str, token: str, name: str) -> Iterator[None]:
    """Visits one after the other; every answer has to come. Yields after each reward."""
    rng = np.random.default_rng(len(name))
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        while True:
            rows = rng.standard_normal((5, DIM))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            items = [{"id": str(k), "features": row.tolist()} for k, row in enumerate(rows)]
            user = f"{name}-{rng.integers(8)}"
            shown = client.post("/v1/recommend", json={"user": user, "items": items})
            if shown.status_code == 200:
                said = {"decision": shown.json()["decision"], "reward": float(rng.random())}
                shown = client.post("/v1/feedback", json=said)
            if shown.status_code != 200:
                raise DrillFailed(f"{name} answers {shown.status_code}: {shown.text}")
            yield


def read_hub(federation: Path) -> GlobalNode:
    """The global server as its store has it; it does not run."""
    options = Folder(federation).global_settings()
    return global_node(load_settings(GlobalSettings, federation / "global.toml", options, {}))


def count(hub: GlobalNode, kit: Path, store: Path, rewards: int) -> int:
    """Compare a local server's store with its acknowledged rewards and with the global server's."""
    given = read_kit(kit).settings(kit) | {"store": str(store)}
    node = local_node(load_settings(LocalSettings, None, given, {}))
    node.store.close()
    if node.feedbacks != rewards:
        raise DrillFailed(f"{node.name} acknowledged {rewards} rewards and has {node.feedbacks}")
    ours, theirs = hub.peers[node.name].channel, node.sessions.channel
    _same(theirs, ours)
    if not hub.peers[node.name].retired:
        _same(ours, theirs)
    return ours.received + theirs.received


def _same(sender: Channel, receiver: Channel) -> None:
    """The receiver has applied what was sent up to its number, and nothing else."""
    if sender.chains.get(receiver.received) != receiver.heard:
        raise DrillFailed(f"{sender.name} to {receiver.name}: other messages than were sent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="fclub-plus")
    parser.add_argument("--visits", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drill = KitDrill(Path(folder), given.policy, given.visits)
        print(json.dumps(drill.run(), indent=1))


if __name__ == "__main__":
    main()
