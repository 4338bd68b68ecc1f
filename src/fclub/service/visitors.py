"""Simulated visitors of a running federation, and the regret that they meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from fclub.client import AsyncClient
from fclub.core.types import Indices, Matrix


class World(Protocol):
    """What visitors need of an environment: who comes next, what is on offer, what follows."""

    server_of: Indices

    def visit(self) -> tuple[int, Matrix]: ...

    def feedback(self, index: int) -> Any: ...


@dataclass
class Tally:
    """What has happened so far."""

    visits: int = 0
    regret: float = 0.0
    reward: float = 0.0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return {**vars(self), "visits_per_second": self.visits / self.seconds if self.seconds else 0.0}


async def visit(
    world: World,
    addresses: list[tuple[str, str]],
    rate: float,
    limit: int | None,
    show: Callable[[Tally], None],
) -> Tally:
    """One visit after the other, at most `rate` a second, until `limit` or cancellation.

    `addresses` are the url and token of every local server, in the environment's order.
    """
    tally, start = Tally(), time.monotonic()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(*address)) for address in addresses]
        while limit is None or tally.visits < limit:
            user, items = world.visit()
            client = clients[int(world.server_of[user])]
            offer = {f"item-{k}": row.tolist() for k, row in enumerate(items)}
            shown = await client.recommend(f"user-{user}", offer)
            outcome = world.feedback(shown.index)
            await client.feedback(shown.decision, outcome.reward)
            tally.visits += 1
            tally.regret += outcome.regret
            tally.reward += outcome.reward
            tally.seconds = time.monotonic() - start
            show(tally)
            await asyncio.sleep(max(0.0, tally.visits / rate - tally.seconds))
    return tally
