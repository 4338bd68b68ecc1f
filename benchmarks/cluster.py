"""A real NATS cluster on this machine, with wires between its brokers that can be cut."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from fclub.service.link.broker import LocalBroker, free_port

SIZE = 3
CHUNK = 1 << 16
Result = TypeVar("Result")


class Wire:
    """Carries bytes to a port of this machine, until it is cut."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: int) -> None:
        self.port, self._loop, self._target = free_port(), loop, target
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def mend(self) -> None:
        self._do(self._mend()).result()

    def cut(self) -> None:
        self._do(self.end()).result()

    def _do(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _mend(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    async def end(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(back)
            try:
                await asyncio.gather(_pour(reader, back), _pour(there, writer))
            finally:
                self._writers.discard(back)
                back.transport.abort()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def _pour(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    target.transport.abort()


class Cluster:
    """Three brokers that are one; every connection between two of them is a wire that can be cut."""

    def __init__(self, folder: Path, passwords: dict[str, str], sync: str = "always") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._made: list[Wire] = []
        ports = [free_port() for _ in range(SIZE)]
        self._monitors = [free_port() for _ in range(SIZE)]
        self._wires = {(k, j): self.wire(ports[j]) for k in range(SIZE) for j in range(SIZE) if k != j}
        self.nodes = [
            LocalBroker(
                folder / f"node-{k}",
                passwords,
                more={
                    "server_name": f"node-{k}",
                    "http": f"127.0.0.1:{self._monitors[k]}",
                    "jetstream": {"sync_interval": sync},
                    "cluster": {
                        "name": "drill",
                        "listen": f"127.0.0.1:{ports[k]}",
                        "no_advertise": True,
                        "routes": [
                            f"nats-route://127.0.0.1:{self._wires[k, j].port}"
                            for j in range(SIZE)
                            if j != k
                        ],
                    },
                },
            )
            for k in range(SIZE)
        ]

    def wire(self, target: int) -> Wire:
        """One more wire, to any port."""
        made = Wire(self._loop, target)
        made.mend()
        self._made.append(made)
        return made

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def check(self) -> None:
        for node in self.nodes:
            node.check()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        for wire in self._made:
            await wire.end()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def isolate(self, number: int) -> None:
        """Cut a broker off from the others; its clients still reach it."""
        for pair, wire in self._wires.items():
            if number in pair:
                wire.cut()

    def join(self) -> None:
        for wire in self._wires.values():
            wire.mend()

    def current(self, number: int) -> bool:
        """Whether a broker says that it has caught up with the others in everything."""
        try:
            url = f"http://127.0.0.1:{self._monitors[number]}/healthz"
            with urllib.request.urlopen(url, timeout=5) as told:
                return bool(told.status == 200)
        except OSError:
            return False

    def leader(self, stream: str) -> int | None:
        """The broker that leads a stream, as any that runs knows it."""
        for node, port in zip(self.nodes, self._monitors, strict=True):
            if node.process is None:
                continue
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/jsz?streams=1", timeout=5
                ) as told:
                    accounts = json.load(told).get("account_details") or []
            except OSError:
                continue
            for account in accounts:
                for found in account.get("stream_detail") or []:
                    name = (found.get("cluster") or {}).get("leader", "")
                    if found["name"] == stream and name:
                        return int(name.rpartition("-")[2])
        return None
