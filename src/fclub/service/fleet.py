"""A whole federation on this machine: broker, global server and local servers as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from fclub.cohorts.members import (
    MemberList,
    in_order,
    make_identity,
    read_identity,
    write_identity,
    write_members,
)
from fclub.errors import FleetFailed, InvalidFile
from fclub.paths import write_atomically
from fclub.service.http.keys import SCOPES, SIMULATE, KeyFile, keys_of, new_token
from fclub.service.link.broker import LocalBroker, free_port
from fclub.service.link.channel import GLOBAL
from fclub.service.nodes.parts import warm
from fclub.service.settings import Model

READY_SECONDS = 120.0
STOP_SECONDS = 20.0
ADDRESSES = "servers.json"
MEMBERS = "members.json"


@dataclass
class Server:
    """One `fclub local` or `fclub global`; it can be killed and started again on the same files."""

    command: str
    name: str
    folder: Path
    settings: dict[str, Any]
    token: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    options: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def page(self) -> str:
        """The dashboard; what follows # stays in the browser."""
        return f"{self.url}/#token={self.token}"

    def start(self) -> None:
        """Every setting goes through the environment; the options would show in a list of processes."""
        keys = keys_of(self.folder / self.name)
        KeyFile(keys).add("fleet", (*SCOPES, SIMULATE), token=self.token)
        values = {"http__port": self.port, "http__keys": str(keys), "http__simulated": True}
        values |= self.settings
        environment = {f"FCLUB_{key.upper()}": _text(value) for key, value in values.items()}
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fclub", self.command, *self.options],
                env=os.environ | environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise FleetFailed(f"{self.name} did not start{self._last_words()}")

    def check(self) -> None:
        """Raise if it has ended by itself."""
        code = None if self.process is None else self.process.poll()
        if code is not None:
            how = f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
            raise FleetFailed(f"{self.name} {how}{self._last_words()}")

    def _last_words(self) -> str:
        """Where its log is, and how that ends."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return f", see {self._log}" + (f", which ends with: {lines[-1]}" if lines else "")

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(number)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class AnyBroker(Protocol):
    """A broker, or several that are one."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def check(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...


def read_addresses(folder: Path) -> dict[str, dict[str, str]]:
    """Url and token of every server that runs in this folder, by name."""
    try:
        found: dict[str, dict[str, str]] = json.loads((folder / ADDRESSES).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{folder} has no running federation: {error}") from None
    return found


def _found(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Who they are to each other, as settings: one operator makes all keys and accepts the list."""
    keys = {name: folder / f"{name}.key" for name in names}
    for name, path in keys.items():
        if not path.exists():
            write_identity(make_identity(name, name), path)
    entries = in_order(read_identity(path).entry for path in keys.values())
    write_members(MemberList("up", 1, entries), folder / MEMBERS)
    listed = {"secure__members": str(folder / MEMBERS)}
    own = {name: listed | {"secure__identity": str(path)} for name, path in keys.items()}
    signers = {entry.name: [entry.key] for entry in entries}
    return own | {GLOBAL: listed | {"signers": signers}}


class Fleet:
    """`with Fleet(folder, servers, model) as fleet:` runs everything inside the block.

    Every local server offers the items of `catalogue`, a file. `hub` are settings of the global server.
    Kernels are compiled once, before all servers start and would compile the same.
    """

    def __init__(
        self,
        folder: Path,
        servers: int,
        model: Model,
        make_broker: Callable[[Path, dict[str, str]], AnyBroker] = LocalBroker,
        catalogue: Path | None = None,
        **hub: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.model = model
        self._addresses = folder / ADDRESSES
        names = [f"s{number}" for number in range(servers)]
        passwords = {name: new_token() for name in [*names, GLOBAL]}
        self.broker = make_broker(folder / "nats", passwords)
        self.token = new_token()

        known = _found(folder, names)

        def server(command: str, name: str, own: dict[str, Any]) -> Server:
            settings = {
                **known[name],
                "model": msgspec.to_builtins(model),
                "store": str(folder / f"{name}.db"),
                "nats__url": self.broker.url,
                "nats__user": name,
                "nats__password": passwords[name],
            }
            return Server(command, name, folder, settings | own, self.token)

        self.hub = server("global", GLOBAL, {"servers": names, **hub})
        offered = {} if catalogue is None else {"catalogue": str(catalogue.absolute())}
        self.locals = [server("local", name, {"name": name} | offered) for name in names]

    @property
    def servers(self) -> list[Server]:
        return [self.hub, *self.locals]

    @property
    def learned(self) -> bool:
        """Whether a local server has a store from an earlier run."""
        return any(Path(server.settings["store"]).exists() for server in self.locals)

    def __enter__(self) -> Fleet:
        try:
            warm(self.model)
            self.broker.start()
            for server in self.servers:
                server.start()
            for server in self.servers:
                server.wait_until_ready()
            self._write_addresses()
        except BaseException:
            self.stop()
            raise
        return self

    def check(self) -> None:
        """Raise, and name it, if a process has ended by itself."""
        self.broker.check()
        for server in self.servers:
            server.check()

    def _write_addresses(self) -> None:
        """Addresses of all servers, for programs; only the owner may read the token."""
        found = {server.name: {"url": server.url, "token": server.token} for server in self.servers}
        with write_atomically(self._addresses, mode=0o600) as file:
            file.write(json.dumps(found, indent=1).encode())

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._addresses.unlink(missing_ok=True)
        for server in reversed(self.servers):
            server.stop()
        self.broker.stop()
