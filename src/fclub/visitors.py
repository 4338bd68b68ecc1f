"""Simulated visitors of a running federation, and what other policies make of the same visits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from fclub.client import AsyncClient
from fclub.environments.base import Environment, Outcome
from fclub.paths import write_atomically
from fclub.policies.base import Policy
from fclub.policies.registry import make_policy

TELL_SECONDS = 1.0
REWARDS_ON_THEIR_WAY = 16
DIARY = "visitors.json"


@dataclass
class Rival:
    """Another policy in a twin of the environment: same seed, so the same users, items and draws."""

    name: str
    environment: Environment
    policy: Policy

    def visit(self) -> Outcome:
        user, items = self.environment.visit()
        index = self.policy.recommend(user, items)
        outcome = self.environment.feedback(index)
        self.policy.update(user, items[index], outcome.reward)
        return outcome


RIVALS = "linucb", "random"


def make_rivals(make_twin: Callable[[], Environment], seed: int) -> list[Rival]:
    """One LinUCB per user, and no choice at all, each in its own copy of the environment."""
    rivals = []
    for name in RIVALS:
        environment, policy = make_twin(), make_policy(name)
        policy.start(environment.problem, environment.server_of, seed=seed)
        rivals.append(Rival(name, environment, policy))
    return rivals


@dataclass
class Earned:
    """Sums over visits; `squares` are those of the regret, from which follows how sure its mean is."""

    reward: float = 0.0
    regret: float = 0.0
    squares: float = 0.0


@dataclass
class Earnings:
    """What has happened so far, by policy; `policy` is the federation's."""

    policy: str
    visits: int = 0
    seconds: float = 0.0
    policies: dict[str, Earned] = field(default_factory=dict)

    def add(self, outcomes: dict[str, Outcome]) -> None:
        """One visit, as every policy met it."""
        self.visits += 1
        for name, outcome in outcomes.items():
            earned = self.policies.setdefault(name, Earned())
            earned.reward += outcome.reward
            earned.regret += outcome.regret
            earned.squares += outcome.regret**2

    @property
    def earned(self) -> Earned:
        return self.policies.get(self.policy, Earned())

    def as_dict(self) -> dict[str, Any]:
        speed = self.visits / self.seconds if self.seconds else 0.0
        rivals = {name: asdict(e) for name, e in self.policies.items() if name != self.policy}
        counts = {"visits": self.visits, "seconds": self.seconds, "visits_per_second": speed}
        return {**counts, **asdict(self.earned), "rivals": rivals}

    def body(self) -> dict[str, Any]:
        """What the pages of the servers are told."""
        return {"visits": self.visits, "policies": {k: asdict(e) for k, e in self.policies.items()}}


class Diary(msgspec.Struct):
    """What a folder remembers of its visitors, so that a later run goes on where the last one stopped.

    `setting` says who visited whom. `compared` is false once the federation has learned from visits
    that the rivals cannot repeat: then no rival is shown.
    """

    setting: dict[str, Any]
    tally: Earnings
    shares: list[Earnings]
    compared: bool = True

    @staticmethod
    def open(folder: Path, setting: dict[str, Any], servers: int, learned: bool) -> Diary:
        """The folder's own diary if it is about this setting, else a new one.

        `learned` says whether the folder's servers have learned before.
        """
        file = folder / DIARY
        known = msgspec.json.decode(file.read_bytes(), type=Diary) if file.exists() else None
        if known is not None and known.setting == setting:
            return known
        policy = str(setting["policy"])
        return Diary(setting, Earnings(policy), [Earnings(policy) for _ in range(servers)], not learned)

    def save(self, folder: Path) -> None:
        with write_atomically(folder / DIARY) as file:
            file.write(msgspec.json.encode(self))


@dataclass(frozen=True)
class Venue:
    """Who plays where; an address is a url and a token, `servers` are in the environment's order."""

    policy: str
    environment: Environment
    rivals: list[Rival]
    hub: tuple[str, str]
    servers: list[tuple[str, str]]

    def catch_up(self, visits: int) -> None:
        """Bring environment and rivals to where they were: a seed makes the same visits again."""
        for _ in range(visits):
            self.environment.visit()
            self.environment.feedback(0)
            for rival in self.rivals:
                rival.visit()


async def visit(
    stage: Venue, diary: Diary, folder: Path, rate: float, limit: int | None, show: Callable[[], None]
) -> None:
    """One visit after the other, at most `rate` a second, until `limit` more or cancellation.

    Rewards follow their recommendations without holding up the next visitor, as in any application.
    """
    try:
        await _visit(stage, diary, folder, rate, limit, show)
    finally:
        diary.save(folder)


async def _visit(
    stage: Venue, diary: Diary, folder: Path, rate: float, limit: int | None, show: Callable[[], None]
) -> None:
    tally, shares = diary.tally, diary.shares
    start, told, before, count = time.monotonic(), 0.0, tally.seconds, 0
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(AsyncClient(*stage.hub))
        clients = [await stack.enter_async_context(AsyncClient(*at)) for at in stage.servers]
        rewards = await stack.enter_async_context(_Rewards())
        while limit is None or count < limit:
            server, outcome = await _one(stage.environment, clients, rewards)
            outcomes = {stage.policy: outcome} | {r.name: r.visit() for r in stage.rivals}
            tally.add(outcomes)
            shares[server].add(outcomes)
            count += 1
            passed = time.monotonic() - start
            tally.seconds = before + passed
            show()
            if passed - told >= TELL_SECONDS or count == limit:
                told = passed
                diary.save(folder)
                for client, share in zip([hub, *clients], [tally, *shares], strict=True):
                    await client.request("POST", "/v1/visitors", share.body())
            await asyncio.sleep(max(0.0, count / rate - passed))


class _Rewards(asyncio.TaskGroup):
    """Rewards on their way; a few at a time, and none is left behind."""

    def __init__(self) -> None:
        super().__init__()
        self._room = asyncio.Semaphore(REWARDS_ON_THEIR_WAY)

    async def tell(self, client: AsyncClient, decision: str, reward: float) -> None:
        """Return as soon as there is room for it."""
        await self._room.acquire()
        self.create_task(self._tell(client, decision, reward))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        except ExceptionGroup as group:  # one reason is enough for people
            raise group.exceptions[0] from None

    async def _tell(self, client: AsyncClient, decision: str, reward: float) -> None:
        try:
            await client.feedback(decision, reward)
        finally:
            self._room.release()


async def _one(
    environment: Environment, clients: list[AsyncClient], rewards: _Rewards
) -> tuple[int, Outcome]:
    """A visit to the server of the user; returns the server's number and the outcome."""
    user, items = environment.visit()
    server = int(environment.server_of[user])
    offer = {f"item-{k}": row.tolist() for k, row in enumerate(items)}
    shown = await clients[server].recommend(f"user-{user}", offer)
    outcome = environment.feedback(shown.index)
    await rewards.tell(clients[server], shown.decision, outcome.reward)
    return server, outcome
