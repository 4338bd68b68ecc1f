"""Tasks that are sure to end."""

from __future__ import annotations

import asyncio
from typing import Any

PATIENCE = 0.1


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel these tasks and return when they are over.

    One cancellation may not do: `asyncio.wait_for` before Python 3.12 drops one that comes together
    with its result, and so do some libraries. So it is repeated.
    """
    alive = set(tasks)
    while alive:
        for task in alive:
            task.cancel()
        _, alive = await asyncio.wait(alive, timeout=PATIENCE)
