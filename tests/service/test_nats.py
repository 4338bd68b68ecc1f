"""The same federation over a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.parts import federated

from fclub.environments.synthetic import Synthetic
from fclub.service.link import nats_wire
from fclub.service.link.broker import LocalBroker, global_permissions, permissions
from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import Broker, NatsWire
from fclub.service.link.streams import UP_STREAM, down_stream
from fclub.service.link.wire import Arrival
from fclub.service.monitoring import Monitor
from fclub.service.nodes.handshake import AGREED
from fclub.service.nodes.node import Node
from fclub.service.nodes.runner import Runner
from fclub.service.settings import Model

from .federation import Pump, in_process, model_of, name_of, register, visits

NAMES = [f"s{number}" for number in range(5)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    found = LocalBroker(tmp_path / "nats", {name: f"secret-{name}" for name in [*NAMES, GLOBAL]})
    found.start()
    yield found
    found.stop()


def login(broker: LocalBroker, name: str) -> Broker:
    return Broker(broker.url, name, f"secret-{name}")


def runner_of(name: str, node: Node, broker: LocalBroker) -> Runner:
    monitor = Monitor(name)
    wire = NatsWire(name, login(broker, name), monitor, NAMES if name == GLOBAL else None)
    return Runner(node, wire, monitor)


class NatsFederation(Pump):
    """The pump's nodes, each with a runner and a connection of its own."""

    async def start(self, broker: LocalBroker) -> None:
        nodes = {GLOBAL: self.hub, **self.locals}
        self.runners = {name: runner_of(name, node, broker) for name, node in nodes.items()}
        for runner in self.runners.values():
            await runner.start()

    async def quiet(self) -> None:
        """Everything is on disk, delivered and confirmed."""
        for runner in self.runners.values():
            await runner.commit()
        while not self._settled():
            await asyncio.sleep(0.001)

    def _settled(self) -> bool:
        """Nobody waits for an answer, and no detection runs: a simulation has it done at once."""
        if any(n.busy or n.sessions.handshake.standing.state != AGREED for n in self.locals.values()):
            return False
        return all(c.confirmed == c.sent for r in self.runners.values() for c in r.node.channels)

    async def stop(self) -> None:
        for runner in self.runners.values():
            await runner.stop()


async def replay(
    path: Path, broker: LocalBroker, environment: Synthetic, model: Model, rounds: int
) -> tuple[Pump, list[int]]:
    federation = NatsFederation(path, model, len(NAMES))
    register(federation, environment)
    await federation.start(broker)
    await federation.quiet()
    choices = []
    for user, items, reward in visits(environment, rounds):
        name = f"s{environment.server_of[user]}"
        node = federation.locals[name]
        decision = node.recommend(name_of(user), items, [str(k) for k in range(len(items))])
        await federation.runners[name].commit()
        node.rewards.feedback(decision.id, reward(decision.index))
        await federation.quiet()
        choices.append(decision.index)
    await federation.stop()
    return federation, choices


def check_replay(path: Path, broker: LocalBroker, name: str, rounds: int) -> None:
    environment = Synthetic(placement="spread")
    environment.start(5)
    model = model_of(environment, name)
    federation, choices = asyncio.run(replay(path, broker, environment, model, rounds))
    environment.start(5)
    policy = in_process(name, environment)
    expected = []
    for user, items, reward in visits(environment, rounds):
        index = policy.recommend(user, items)
        policy.update(user, items[index], reward(index))
        expected.append(index)
    assert choices == expected
    ours, theirs = federation.hub.server.state()[0], federated(policy).federation.hub.state()[0]
    assert ours.keys() == theirs.keys()
    for key in ours:
        np.testing.assert_array_equal(ours[key], theirs[key])


POLICIES = pytest.mark.parametrize("name", ["fclub-dc", "fclub-plus"])


@POLICIES
def test_a_short_replay_over_nats_equals_the_simulation(
    tmp_path: Path, broker: LocalBroker, name: str
) -> None:
    check_replay(tmp_path, broker, name, 60)


@pytest.mark.slow
@POLICIES
def test_a_replay_over_nats_equals_the_simulation(
    tmp_path: Path, broker: LocalBroker, name: str
) -> None:
    """2,000 visits as a gate; the full form sets FCLUB_REPLAY_VISITS=20000."""
    check_replay(tmp_path, broker, name, int(os.environ.get("FCLUB_REPLAY_VISITS", "2000")))


STREAMS = [UP_STREAM, down_stream("s0"), down_stream("s1")]
STREAM_CALLS = [
    "CREATE",
    "UPDATE",
    "DELETE",
    "INFO",
    "PURGE",
    "SNAPSHOT",
    "RESTORE",
    "MSG.GET",
    "MSG.DELETE",
]
CONSUMER_CALLS = ["CREATE", "DURABLE.CREATE", "DELETE", "INFO", "NAMES", "LIST", "MSG.NEXT", "PAUSE"]
ACKNOWLEDGED = "1.1.1.1.1"


def speech_of_others() -> list[str]:
    """Subjects that s1 or the global server may publish to, and every call of the broker's own API."""
    calls = ["$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES"]
    for stream in STREAMS:
        calls += [f"$JS.API.STREAM.{call}.{stream}" for call in STREAM_CALLS]
        calls += [f"$JS.API.DIRECT.GET.{stream}"]
        for name in ("s0", "s1", GLOBAL):
            calls += [f"$JS.API.CONSUMER.{call}.{stream}.{name}" for call in CONSUMER_CALLS]
            calls += [f"$JS.ACK.{stream}.{name}.{ACKNOWLEDGED}"]
    own = set(allowed(permissions("s0"), "publish"))
    others = allowed(permissions("s1"), "publish") + allowed(global_permissions(), "publish")
    return sorted({*calls, *others, "fclub.down.s0", "fclub.up.s9", "$SYS.REQ.SERVER.PING"} - own)


def ears_of_others() -> list[str]:
    others = allowed(permissions("s1"), "subscribe") + allowed(global_permissions(), "subscribe")
    wild = [">", "*", "fclub.>", "fclub.up.>", "fclub.up.s0", "fclub.up.s1", "_INBOX.>"]
    down = ["fclub.down.>", "fclub.down.s0", "fclub.down.s1", "$JS.>", "$JS.EVENT.>", "$SYS.>"]
    return sorted({*others, *wild, *down})


def allowed(rules: dict[str, dict[str, list[str]]], kind: str) -> list[str]:
    """The subjects of a rule, wildcards filled in."""
    return [s.replace("*", "s1").replace(">", ACKNOWLEDGED) for s in rules[kind]["allow"]]


def refusals(broker: LocalBroker, publish: list[str], subscribe: list[str]) -> list[str]:
    """What the broker answers to s0, in order: the protocol itself, since a client may reorder."""
    login = json.dumps({"user": "s0", "pass": "secret-s0", "verbose": False})
    lines = [f"CONNECT {login}", *(f"PUB {subject} 1\r\nx" for subject in publish)]
    lines += [*(f"SUB {subject} {k}" for k, subject in enumerate(subscribe, start=1)), "PING\r\n"]
    answer = b""
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        connection.sendall("\r\n".join(lines).encode())
        while not answer.endswith(b"PONG\r\n"):
            answer += connection.recv(4096)
    return [line for line in answer.decode().splitlines() if line.startswith("-ERR")]


def test_a_server_cannot_publish_as_another(broker: LocalBroker) -> None:
    subjects = speech_of_others()
    seen = refusals(broker, subjects, [])
    assert len(subjects) > 100
    for subject, refusal in zip(subjects, seen, strict=True):
        assert f'Permissions Violation for Publish to "{subject}"' in refusal


def test_a_server_cannot_listen_to_another(broker: LocalBroker) -> None:
    subjects = ears_of_others()
    seen = refusals(broker, [], subjects)
    for subject, refusal in zip(subjects, seen, strict=True):
        assert f'Permissions Violation for Subscription to "{subject}"' in refusal


def test_a_server_may_speak_as_itself(broker: LocalBroker) -> None:
    own = permissions("s0")
    speech, ears = allowed(own, "publish"), allowed(own, "subscribe")
    assert refusals(broker, speech, ears) == []


@pytest.mark.parametrize(
    ("user", "password"), [("", ""), ("s0", "secret-s1"), ("nobody", "x"), ("s0", "")]
)
def test_wrong_credentials_are_refused(broker: LocalBroker, user: str, password: str) -> None:
    options = json.dumps({"user": user, "pass": password, "verbose": False})
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        connection.sendall(f"CONNECT {options}\r\nPING\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"Authorization Violation" in answer
    assert b"PONG" not in answer


HANGS = 60.0
"""Nothing below takes so long; it only ends what hangs."""


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


class Ends:
    """The wires of s0 and of the global server, which notes what arrives there."""

    def __init__(self, broker: LocalBroker, between: str | None = None) -> None:
        local, hub = login(broker, "s0"), login(broker, GLOBAL)
        local = local if between is None else replace(local, url=between)
        self.local = NatsWire("s0", local, Monitor("s0"))
        self.hub = NatsWire(GLOBAL, hub, Monitor(GLOBAL), ["s0"])
        self.heard: list[bytes] = []

    async def start(self) -> None:
        async def deliver(arrivals: list[Arrival]) -> None:
            self.heard += [frame for _, frame in arrivals]

        for wire in (self.hub, self.local):
            await wire.start(deliver, lambda: None)
        await self.say(b"first")

    async def say(self, frame: bytes) -> None:
        """Until it arrives, as a runner does."""
        while frame not in self.heard:
            await self.local.send(GLOBAL, frame, None)
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await self.local.stop()
        await self.hub.stop()


def test_a_client_that_is_closed_for_good_is_replaced(broker: LocalBroker) -> None:
    """nats-py never comes back after a broker has refused a password, though it be right again."""

    def reload(password: str) -> None:
        text = config.read_text()
        config.write_text(text.replace("secret-s0", password).replace("other-s0", password))
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)

    async def run() -> None:
        ends = Ends(broker)
        await ends.start()
        client = ends.local._client
        assert client is not None
        reload("other-s0")
        await until(lambda: client.is_closed)
        reload("secret-s0")
        await ends.say(b"second")
        assert ends.local._client is not client
        await ends.stop()

    config = broker.folder / "nats.json"
    asyncio.run(asyncio.wait_for(run(), HANGS))


class Relay:
    """Between a client and the broker; can go silent on all connections that it has, as a cut cable."""

    def __init__(self, port: int) -> None:
        self._port, self._tasks = port, set[asyncio.Task[None]]()
        self._now = asyncio.Event()
        self.dialled = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled += 1
        there, broker = await asyncio.open_connection("127.0.0.1", self._port)
        silent = self._now
        for source, target in ((reader, broker), (there, writer)):
            self._tasks.add(asyncio.create_task(self._pass_on(source, target, silent)))

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, silent: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if not silent.is_set():
                    target.write(data)
                    await target.drain()
        target.close()

    def go_silent(self) -> None:
        self._now.set()
        self._now = asyncio.Event()

    async def stop(self) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks)


def test_a_client_that_hears_nothing_is_replaced(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes itself for connected; its own pings would need minutes to find out."""
    monkeypatch.setattr(nats_wire, "POLL_SECONDS", 0.2)
    pull = json.loads(nats_wire.PULL) | {"expires": int(0.2e9)}
    monkeypatch.setattr(nats_wire, "PULL", json.dumps(pull).encode())

    async def run() -> None:
        relay = Relay(broker.port)
        ends = Ends(broker, await relay.start())
        await ends.start()
        relay.go_silent()
        await ends.say(b"second")
        assert relay.dialled >= 2
        await ends.stop()
        await relay.stop()

    asyncio.run(asyncio.wait_for(run(), HANGS))
