"""Uploads per second that the federation carries over a real broker, applied and confirmed.

python -m benchmarks.service_link --uploads 5000 --sync always --brokers 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.cluster import SIZE, Cluster

from fclub.service.fleet import AnyBroker
from fclub.service.link.broker import LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import Broker, NatsWire
from fclub.service.monitoring import Monitor
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import global_node, local_node
from fclub.service.nodes.runner import Runner
from fclub.service.settings import GlobalSettings, LocalSettings, Model

NAMES = ["s0", "s1"]
MODEL = Model(policy="fclub", dim=10)
"""Every observation is an upload, and a download for the other server."""

BURST = 200


async def measure(folder: Path, broker: AnyBroker, uploads: int, replicas: int) -> dict[str, float]:
    hub = global_node(GlobalSettings(model=MODEL, store=str(folder / "global.db"), servers=NAMES))
    nodes = [
        local_node(LocalSettings(model=MODEL, name=n, store=str(folder / f"{n}.db"))) for n in NAMES
    ]
    runners = []
    for name, node in zip([GLOBAL, *NAMES], [hub, *nodes], strict=True):
        login = Broker(broker.url, name, name)
        wire = NatsWire(name, login, Monitor(name), NAMES if name == GLOBAL else None, replicas)
        runners.append(Runner(node, wire, Monitor(name)))
        await runners[-1].start()
    rng = np.random.default_rng(0)
    items = rng.standard_normal((uploads + 10, 1, 10))
    items /= np.linalg.norm(items, axis=2, keepdims=True)
    for node in nodes:
        node.recommend("user", items[-1], ["i"])
    while not all(one.cluster is not None for node in nodes for one in node.server.overview()):
        await asyncio.sleep(0.01)
    start = time.monotonic()
    for k in range(uploads):
        node = nodes[k % 2]
        node.server.observe(0, items[k, 0], 1.0)
        if k % BURST == BURST - 1:
            await asyncio.gather(*(runner.commit() for runner in runners[1:]))
            await until(lambda: all(_flows(node) for node in nodes))
    await asyncio.gather(*(runner.commit() for runner in runners[1:]))
    await until(lambda: all(n.sessions.channel.sent == n.sessions.channel.confirmed for n in nodes))
    seconds = time.monotonic() - start
    applied = hub.communications.uploads
    for runner in runners:
        await runner.stop()
    return {"uploads": applied, "seconds": seconds, "uploads_per_second": applied / seconds}


def _flows(node: LocalNode) -> bool:
    """Not too much is on the way, and no plan is awaited: while it is, uploads are held."""
    return (
        not node.server.status().unanswered
        and node.sessions.channel.sent - node.sessions.channel.confirmed < 4 * BURST
    )


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uploads", type=int, default=5000)
    parser.add_argument("--sync", default="2m", help="how often the broker writes to disk, or always")
    parser.add_argument("--brokers", type=int, choices=[1, SIZE], default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder, passwords = Path(home) / "nats", {name: name for name in [*NAMES, GLOBAL]}
        sync = {"jetstream": {"sync_interval": given.sync}}
        broker: AnyBroker = LocalBroker(folder, passwords, more=sync)
        if given.brokers > 1:
            broker = Cluster(folder, passwords, given.sync)
        broker.start()
        try:
            found = asyncio.run(measure(Path(home), broker, given.uploads, given.brokers))
            print(json.dumps(found | {"sync": given.sync, "brokers": given.brokers}))
        finally:
            broker.stop()
