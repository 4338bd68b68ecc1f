"""The same federation over a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import nats
import numpy as np
import pytest

from fclub.environments.synthetic import Synthetic
from fclub.service.broker import LocalBroker
from fclub.service.local_node import GLOBAL
from fclub.service.monitoring import Monitor
from fclub.service.nats_wire import Broker, NatsWire
from fclub.service.runtime import Node, Runner
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
        while any(c.confirmed < c.sent for r in self.runners.values() for c in r.node.channels):
            await asyncio.sleep(0.001)

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
        node.feedback(decision.id, reward(decision.index))
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
    ours, theirs = federation.hub.server.state_of()[0], policy.hub.state_of()[0]
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


FORBIDDEN_PUBLISH = [
    "fclub.up.s1",
    "fclub.down.s0",
    "fclub.down.s1",
    "$JS.API.STREAM.INFO.UP",
    "$JS.API.STREAM.DELETE.UP",
    "$JS.API.STREAM.PURGE.DOWN_s0",
    "$JS.API.STREAM.MSG.GET.DOWN_s1",
    "$JS.API.CONSUMER.CREATE.DOWN_s1",
    "$JS.API.CONSUMER.MSG.NEXT.DOWN_s1.s1",
    "$JS.API.CONSUMER.MSG.NEXT.UP.global",
    "$JS.ACK.UP.global.1.1.1.1.1",
    "$JS.ACK.DOWN_s1.s1.1.1.1.1.1",
]
FORBIDDEN_SUBSCRIBE = [
    "fclub.up.>",
    "fclub.down.s1",
    "fclub.down.s0",
    "_INBOX_s1.>",
    "_INBOX.>",
    ">",
    "$JS.EVENT.>",
]


async def refusals(broker: LocalBroker, publish: list[str], subscribe: list[str]) -> list[str]:
    """What the broker answers to a client with the credentials of s0."""
    seen: list[str] = []
    told = asyncio.Event()

    async def note(error: Exception) -> None:
        seen.append(str(error).lower())
        told.set()

    login_s0 = login(broker, "s0")
    client = await nats.connect(
        broker.url,
        user=login_s0.user,
        password=login_s0.password,
        error_cb=note,
        inbox_prefix=b"_INBOX_s0",
    )
    for subject in publish:
        await client.publish(subject, b"x")
    for subject in subscribe:
        await client.subscribe(subject)
    await client.flush()
    with suppress(TimeoutError):
        await asyncio.wait_for(told.wait(), timeout=1.0)
    await client.close()
    return seen


@pytest.mark.parametrize("subject", FORBIDDEN_PUBLISH)
def test_a_server_cannot_publish_as_another(broker: LocalBroker, subject: str) -> None:
    (refusal,) = asyncio.run(refusals(broker, [subject], []))
    assert "permissions violation for publish" in refusal


@pytest.mark.parametrize("subject", FORBIDDEN_SUBSCRIBE)
def test_a_server_cannot_listen_to_another(broker: LocalBroker, subject: str) -> None:
    (refusal,) = asyncio.run(refusals(broker, [], [subject]))
    assert "permissions violation for subscription" in refusal


def test_a_server_may_speak_as_itself(broker: LocalBroker) -> None:
    assert asyncio.run(refusals(broker, ["fclub.up.s0"], ["_INBOX_s0.>"])) == []


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
