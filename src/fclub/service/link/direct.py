"""The wire inside one process: a local server that carries its own global server."""

from __future__ import annotations

import asyncio

from fclub.service.link.tasks import end
from fclub.service.nodes.runner import Arrival, Deliver

GATHER_SECONDS = 0.02
"""Nobody waits for a frame, and every batch costs a commit at both ends."""


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

    async def start(self, deliver: Deliver) -> None:
        self._task = asyncio.create_task(self._run(deliver))

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
