"""What carries frames between nodes, and the wire inside one process.

A local server that carries its own global server needs no broker; `nats_wire.py` goes between machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

PATIENCE = 0.1
GATHER_SECONDS = 0.02
"""Time between batches: no request waits for a frame, and each batch costs a commit at both ends."""

Arrival = tuple[str, bytes]
"""Sender and frame."""

Deliver = Callable[[list[Arrival]], Awaitable[None]]
Connected = Callable[[], None]
"""Called whenever the wire is there, at last or again."""


class Wire(Protocol):
    """Carries frames to peers and brings theirs; may lose them, may be down."""

    async def start(self, deliver: Deliver, connected: Connected) -> None: ...

    async def send(self, peer: str, frame: bytes, message_id: str | None) -> None: ...

    async def stop(self) -> None: ...

    @property
    def connected(self) -> bool: ...


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


class DirectWire:
    """Hands frames to the wires of its peers in this event loop, a batch at a time."""

    def __init__(self, name: str, board: dict[str, DirectWire]) -> None:
        self.name, self._board = name, board
        self._queue: asyncio.Queue[Arrival] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        board[name] = self

    @property
    def connected(self) -> bool:
        return True

    async def start(self, deliver: Deliver, connected: Connected) -> None:
        self._task = asyncio.create_task(self._run(deliver))
        connected()

    async def _run(self, deliver: Deliver) -> None:
        while True:
            batch = [await self._queue.get()]
            await asyncio.sleep(GATHER_SECONDS)
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await deliver(batch)

    async def send(self, peer: str, frame: bytes, message_id: str | None) -> None:
        self._board[peer]._queue.put_nowait((self.name, frame))

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)
