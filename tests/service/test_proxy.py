"""Two local servers behind the nginx of deploy/nginx.conf, one of which is killed meanwhile."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest

from fclub import AsyncClient, Client
from fclub.client import Recommendation
from fclub.errors import RequestFailed
from fclub.service.fleet import Fleet, Server
from fclub.service.link.broker import free_port
from fclub.service.settings import POLICY, Model

from .conftest import wait_for

CONFIG = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/sbin")

DIM, USERS, VISITS, BATCH, WORKERS = 4, 400, 20_000, 500, 2
KILL_AFTER, RESTART_AFTER = 6_000, 9_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="nginx is missing (Debian: nginx-light)"),
]


@contextmanager
def nginx(folder: Path, servers: list[Server]) -> Iterator[str]:
    """The address of an nginx with the shipped configuration, but for its ports and folders."""
    port = free_port()
    text = CONFIG.read_text().replace("127.0.0.1:8100", f"127.0.0.1:{port}")
    for number, server in enumerate(servers, 8101):
        text = text.replace(f"127.0.0.1:{number}", f"127.0.0.1:{server.port}")
    assert len(re.findall(r"^ *server 127", text, re.MULTILINE)) == len(servers)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"  {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(text.replace("http {\n", f"http {{\n{folders}"))
    own = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/nginx.log;"
    assert NGINX is not None
    with (folder / "nginx.err").open("wb") as errors:
        process = subprocess.Popen([NGINX, "-c", str(config), "-g", own], stderr=errors)
    try:

        def answers() -> bool:
            assert process.poll() is None, (folder / "nginx.err").read_text()
            try:
                return httpx.get(f"http://127.0.0.1:{port}/").status_code == 404
            except httpx.TransportError:
                return False

        wait_for(answers)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@dataclass
class Visitors:
    """Visits in batches, and every reward that was acknowledged, by user and decision."""

    url: str
    token: str
    acknowledged: dict[str, dict[str, float]] = field(default_factory=dict)
    refused: int = 0

    @property
    def visits(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def visit(self, seed: int) -> None:
        rng = np.random.default_rng([7, seed])
        async with AsyncClient(self.url, self.token, retries=0, split=True, timeout=60) as client:
            while self.visits < VISITS:
                users = [f"user-{k}" for k in rng.integers(USERS, size=BATCH)]
                rows = rng.standard_normal((BATCH, 3, DIM))
                rows /= np.linalg.norm(rows, axis=2, keepdims=True)
                offers = [{str(k): row.tolist() for k, row in enumerate(items)} for items in rows]
                shown = await client.recommend_batch(zip(users, offers, strict=True))
                rewards: dict[str, tuple[str, float]] = {}
                for user, one in zip(users, shown, strict=True):
                    if isinstance(one, Recommendation):
                        rewards[one.decision] = user, float(rng.integers(2))
                    else:
                        assert isinstance(one, RequestFailed)
                        assert one.status == 503, one
                        self.refused += 1
                told = {decision: reward for decision, (_, reward) in rewards.items()}
                for decision, counted in (await client.feedback_batch(told)).items():
                    user, reward = rewards[decision]
                    if isinstance(counted, RequestFailed):
                        assert counted.status == 503, counted
                    else:
                        self.acknowledged.setdefault(user, {})[decision] = reward

    async def play(self, victim: Server) -> None:
        async with asyncio.TaskGroup() as tasks:
            for worker in range(WORKERS):
                tasks.create_task(self.visit(worker))
            await self.until(KILL_AFTER)
            victim.kill()
            before = self.refused
            await self.until(RESTART_AFTER)
            assert self.refused > before, "the users of a server that is down wait for it"
            victim.start()
            await asyncio.to_thread(victim.wait_until_ready)

    async def until(self, visits: int) -> None:
        while self.visits < visits:
            await asyncio.sleep(0.05)


def homes(user: str, clients: list[Client]) -> dict[int, dict[str, float | None]]:
    """The decisions of a user at each server that knows it, with their rewards."""
    found = {}
    for number, client in enumerate(clients):
        try:
            data = client.user_data(user)
        except RequestFailed as error:
            if error.status != 404:
                raise
            continue
        found[number] = {one["decision"]: one["reward"] for one in data["decisions"]}
        learned = sum(reward is not None for reward in found[number].values())
        assert data["statistics"]["observations"] == learned
    return found


def test_every_user_has_one_home_through_a_crash(tmp_path: Path) -> None:
    model = Model(dim=DIM)
    assert model.policy == POLICY == "cdp-fclub-plus"
    with Fleet(tmp_path, 2, model) as fleet, nginx(tmp_path, fleet.locals) as url:
        visitors = Visitors(url, fleet.token)
        asyncio.run(visitors.play(fleet.locals[0]))
        assert visitors.visits >= VISITS
        with (
            Client(fleet.locals[0].url, fleet.token) as one,
            Client(fleet.locals[1].url, fleet.token) as two,
        ):
            at = {user: homes(user, [one, two]) for user in visitors.acknowledged}
    assert [user for user, found in at.items() if len(found) != 1] == []
    users = [sum(number in found for found in at.values()) for number in range(2)]
    assert min(users) > USERS / 4
    for user, rewards in visitors.acknowledged.items():
        (stored,) = at[user].values()
        lost = {decision for decision, reward in rewards.items() if stored.get(decision) != reward}
        assert lost == set(), user


def test_what_has_no_user_or_no_header_is_refused_by_the_proxy(tmp_path: Path) -> None:
    """Without servers: nginx itself answers, in JSON."""
    nobody = [Server("local", f"s{k}", tmp_path, {}, "token") for k in range(2)]
    with nginx(tmp_path, nobody) as url, httpx.Client(base_url=url) as client:
        for header in ({}, {"X-Fclub-User": "4"}, {"X-Fclub-User": "4A"}, {"X-Fclub-User": "49,49"}):
            answer = client.post("/v1/recommend/batch", json={}, headers=header)
            assert (answer.status_code, "split=True" in answer.json()["error"]) == (400, True)
        for path in ("/v1/items", "/metrics", "/v1/usersx"):
            answer = client.get(path, headers={"X-Fclub-User": "49"})
            assert (answer.status_code, "its own address" in answer.json()["error"]) == (404, True)
        answer = client.delete("/v1/users/ann", headers={"X-Fclub-User": "49"})
        assert (answer.status_code, "does not answer" in answer.json()["error"]) == (503, True)
