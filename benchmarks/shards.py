"""A site of two shards beside one local server: CPU of all its processes, and regret.

python benchmarks/shards.py cpu --seconds 10
python benchmarks/shards.py regret --visits 20000
python benchmarks/shards.py simulated --visits 20000 --seeds 60 --jobs 2

Both are local servers of a federation with a broker and a global server, which are not counted. The
more requests come at a time, the more of them share a commit; at two shards half as many do. Regret
varies by a tenth from seed to seed, and a live run takes long: `simulated` plays the same users with
the same protocol without processes, and shards tell each other their sums between phases.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from fclub.environments.base import Environment
from fclub.environments.registry import make_environment
from fclub.experiments.study.advice import interval
from fclub.protocol.families import make_family
from fclub.protocol.federation import Federation
from fclub.protocol.seam import Shape
from fclub.service.fleet import Server
from fclub.service.link.broker import LocalBroker
from fclub.service.link.channel import GLOBAL
from fclub.service.shards.homes import Homes
from load import (  # type: ignore[import-not-found]  # found when run as a script
    DIM,
    Connection,
    connections,
    throughput,
    visit,
    warm_up,
)

NAMES = ["site", "site-1"]


@contextmanager
def site(policy: str, shards: int, **global_settings: Any) -> Iterator[Server]:
    """A federation whose only site has so many shards; one is a plain local server."""
    names = NAMES[:shards]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = LocalBroker(folder / "nats", dict.fromkeys([*names, GLOBAL], "secret"))
        common = {
            "model__policy": policy,
            "model__dim": DIM,
            "nats__url": broker.url,
            "nats__password": "secret",
            "http__max_body_bytes": 1 << 23,
            "log_level": "warning",
        }
        hub = common | {"store": str(folder / "hub.db"), "servers": names, "nats__user": GLOBAL}
        own = common | {"store": str(folder / "site.db"), "name": "site", "nats__user": "site"}
        options = () if shards == 1 else ("--shards", str(shards))
        servers = [
            Server("global", GLOBAL, folder, hub | global_settings, "token"),
            Server("local", "site", folder, own, "token", options=options),
        ]
        broker.start()
        try:
            for server in servers:
                server.start()
                server.wait_until_ready()
            yield servers[1]
        finally:
            for server in reversed(servers):
                server.stop()
            broker.stop()


def cpu_seconds(pid: int) -> float:
    """Of a process and all that it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_seconds(int(child)) for child in children)


def cpu_per_request(policy: str, shards: int, seconds: float, at_once: int) -> float:
    with site(policy, shards) as server:
        assert server.process is not None
        pid, port, token = server.process.pid, server.port, server.token

        async def measure() -> float:
            await warm_up(port, token, 5_000)
            before = cpu_seconds(pid)
            rate = await throughput(port, token, visit, at_once, seconds)
            return 1e6 * (cpu_seconds(pid) - before) / (rate * seconds)

        return uvloop.run(measure())


async def play(port: int, token: str, environment: Environment, visits: int) -> float:
    """Regret of visits that come one after another."""
    regret = 0.0
    async with connections(port, 1, token) as (connection,):
        for _ in range(visits):
            regret += await visited(connection, environment)
    return regret


async def visited(connection: Connection, environment: Environment) -> float:
    user, items = environment.visit()
    offer = [{"id": str(k), "features": row.tolist()} for k, row in enumerate(items)]
    request = {"user": str(user), "items": offer}
    shown = json.loads(await connection.post(b"/v1/recommend", json.dumps(request).encode()))
    outcome = environment.feedback(shown["index"])
    told = {"decision": shown["decision"], "reward": outcome.reward}
    await connection.post(b"/v1/feedback", json.dumps(told).encode())
    return float(outcome.regret)


def regret(policy: str, shards: int, visits: int, users: int, seed: int) -> float:
    environment = make_environment("synthetic", users=users, servers=1)
    environment.start(seed)
    with site(policy, shards) as server:
        return uvloop.run(play(server.port, server.token, environment, visits))


def simulated(policy: str, shards: int, visits: int, users: int, seed: int) -> float:
    """The same without processes."""
    environment = make_environment("synthetic", users=users, servers=1)
    environment.start(seed)
    home = np.array([Homes([shards]).places(str(user))[0] for user in range(users)])
    row_of = np.argsort(np.argsort(home, kind="stable"), kind="stable")
    first = np.append(0, np.cumsum(np.bincount(home, minlength=shards)))
    family = make_family(policy, Shape(DIM, users), {})
    federation = Federation(family, row_of, first, np.random.SeedSequence(seed), seeded=True)
    told: dict[int, bytes | None] = {}
    regret = 0.0
    for count in range(1, visits + 1):
        user, items = environment.visit()
        row, server = row_of[user] - first[home[user]], federation.servers[home[user]]
        index = server.recommend(row, items)
        outcome = environment.feedback(index)
        server.observe(row, items[index], outcome.reward)
        regret += outcome.regret
        phase = federation.hub.phase
        federation.advance(count)
        if federation.hub.phase != phase:
            tell(federation, told)
    return regret


def tell(federation: Federation, told: dict[int, bytes | None]) -> None:
    """Let every shard hear what is new of the others."""
    for shard, server in federation.servers.items():
        news = None if server.slotted is None else server.slotted.told
        if news is not None and news != told.get(shard):
            told[shard] = news
            for other, sibling in federation.servers.items():
                if other != shard and sibling.slotted is not None:
                    sibling.slotted.hear(shard, news)


def ratio(task: tuple[str, int, int, int]) -> float:
    policy, *rest = task
    one, two = (simulated(policy, shards, *rest) for shards in (1, 2))
    return two / one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["cpu", "regret", "simulated"])
    parser.add_argument("--policy", default="cdp-fclub-plus")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3, help="cpu: pairs of measurements")
    parser.add_argument("--connections", type=int, default=64, help="cpu: requests at a time")
    parser.add_argument("--visits", type=int, default=20_000)
    parser.add_argument("--users", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="simulated: processes")
    given = parser.parse_args()
    if given.what == "cpu":
        for _ in range(given.rounds):
            load = given.seconds, given.connections
            one, two = (cpu_per_request(given.policy, n, *load) for n in (1, 2))
            print(f"{one:.0f} µs a request at one server, {two:.0f} at two shards: {two / one:.2f}")
    elif given.what == "simulated":
        size = given.visits, given.users
        tasks = [(given.policy, *size, given.first + seed) for seed in range(given.seeds)]
        with get_context("spawn").Pool(given.jobs) as pool:
            ratios = np.array(pool.map(ratio, tasks, chunksize=1))
        half = interval(ratios) or 0.0
        print(
            f"{given.seeds} seeds: regret of two shards / one server {ratios.mean():.3f} ± {half:.3f}"
        )
    else:
        for seed in range(given.first, given.first + given.seeds):
            one, two = (regret(given.policy, n, given.visits, given.users, seed) for n in (1, 2))
            print(
                f"seed {seed}: regret {one:.0f} at one server, {two:.0f} at two shards: {two / one:.3f}"
            )


if __name__ == "__main__":
    main()
