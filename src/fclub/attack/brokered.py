"""The same federation over a real broker, at which somebody listens.

Both nodes run as in a deployment: each commits in groups, has a connection of its own, and sends again
what was not confirmed. The attacker has a login of the broker that may read everything.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from pathlib import Path

import nats
import numpy as np
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fclub.attack import statistics as st
from fclub.attack.live import Attack
from fclub.attack.running import NAME, Running, Sent
from fclub.attack.scenes import History, brief
from fclub.attack.transcripts import Transcript
from fclub.errors import BrokerFailed
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.levels import USER
from fclub.privacy.noise import NoiseSource
from fclub.service.link.broker import HUB, LocalBroker, account_of, broker_config
from fclub.service.link.channel import GLOBAL, Numbered, decode_frame, unbundled
from fclub.service.link.nats_wire import Broker, NatsWire
from fclub.service.link.wire import Arrival, Connected, Deliver
from fclub.service.monitoring import Monitor
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.handshake import AGREED
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.runner import Runner
from fclub.service.settings import Model

LISTENER = "listener"
QUIET_SECONDS = 60.0
"""How long it may take until everything that was said has been heard."""

POLL_SECONDS = 0.001


@dataclass
class _Traffic:
    """Frames that nodes have handed to the broker, that arrived, and that the listener has heard."""

    said: set[bytes] = field(default_factory=set)
    arrived: set[bytes] = field(default_factory=set)
    heard: set[bytes] = field(default_factory=set)

    @property
    def settled(self) -> bool:
        return self.said <= self.arrived and self.said <= self.heard


def _is_numbered(frame: bytes, sender: str) -> bool:
    return isinstance(decode_frame(frame, sender), Numbered)


class _Tapped(NatsWire):
    """A node's end of the broker that notes its traffic; while `late`, messages wait in `held`."""

    def __init__(self, name: str, broker: Broker, traffic: _Traffic, late: bool) -> None:
        super().__init__(name, broker, Monitor(name), [NAME] if name == GLOBAL else None)
        self.traffic, self.late = traffic, late
        self.held: dict[bytes, tuple[str, str | None]] = {}
        self.there = asyncio.Event()

    async def start(self, deliver: Deliver, connected: Connected) -> None:
        async def noted(arrivals: list[Arrival]) -> None:
            await deliver(arrivals)
            self.traffic.arrived |= {frame for _, frame in arrivals}

        def tell() -> None:
            connected()
            self.there.set()

        await super().start(noted, tell)

    async def send(self, peer: str, frame: bytes, message_id: str | None) -> None:
        """Frames that one commit has made may come as one."""
        together = unbundled(frame, self.name)
        wait = [one for one in together if self.late and _is_numbered(one, self.name)]
        if not wait:
            await self._say(peer, frame, message_id)
            return
        self.held |= dict.fromkeys(wait, (peer, None))
        for one in together:
            if one not in wait:
                await self._say(peer, one, None)

    async def _say(self, peer: str, frame: bytes, message_id: str | None) -> None:
        if self.connected:
            self.traffic.said.add(frame)
        await super().send(peer, frame, message_id)

    async def catch_up(self) -> None:
        """Send what was held back."""
        self.late = False
        for frame, (peer, message_id) in self.held.items():
            await self.send(peer, frame, message_id)


class _Listener:
    """Somebody who reads whatever servers say to each other through the broker."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client, self._subscription = client, subscription

    @staticmethod
    async def at(broker: Broker) -> _Listener:
        client = await nats.connect(broker.url, user=broker.user, password=broker.password)
        return _Listener(client, await client.subscribe("fclub.>"))

    async def news(self) -> list[Msg]:
        """What the broker has passed on since the last call."""
        await self._client.flush()
        return [await self._subscription.next_msg() for _ in range(self._subscription.pending_msgs)]

    async def leave(self) -> None:
        await self._client.close()


class Brokered(Running):
    """Frames go through a broker; `sent` are those that the listener has heard, each of them once.

    How often a frame is sent again follows from the time that the network takes. A frame under another
    name than its server's, or with a header that tells more than the frame, counts as `refused`.
    """

    def __init__(
        self, folder: Path, model: Model, source: NoiseSource | None, exact: bool, late: bool
    ) -> None:
        self._loop, self._traffic = asyncio.Runner(), _Traffic()
        self._runners: dict[str, tuple[Runner, _Tapped]] = {}
        self._passwords = {name: secrets.token_hex() for name in (NAME, GLOBAL, LISTENER)}
        self._broker = _broker_with_a_listener(folder / "nats", self._passwords)
        self._listener: _Listener | None = None
        self._frames: set[bytes] = set()
        try:
            super().__init__(folder, model, source, exact, late)
        except BaseException:
            self.close()
            raise

    def _login(self, name: str) -> Broker:
        return Broker(self._broker.url, name, self._passwords[name])

    def _open_hub(self) -> GlobalNode:
        self._broker.start()
        self._listener = self._loop.run(_Listener.at(self._login(LISTENER)))
        hub = super()._open_hub()
        self._loop.run(self._start(GLOBAL, hub))
        return hub

    def _open(self) -> LocalNode:
        node = self._read_store()
        self._loop.run(self._start(NAME, node))
        return node

    async def _start(self, name: str, node: LocalNode | GlobalNode) -> None:
        """The global server's streams are there before a local server speaks."""
        wire = _Tapped(name, self._login(name), self._traffic, self.late and name == GLOBAL)
        runner = Runner(node, wire, wire.monitor)
        self._runners[name] = runner, wire
        await runner.start()
        await asyncio.wait_for(wire.there.wait(), QUIET_SECONDS)

    def _stop(self, node: LocalNode | GlobalNode) -> None:
        """As a process ends that is told to: with a snapshot."""
        runner, _ = self._runners.pop(GLOBAL if node is self.hub else NAME)
        self._loop.run(runner.stop())

    def deliver(self) -> None:
        self._loop.run(self._settle())

    async def _settle(self) -> None:
        """Until nobody has anything to say and the listener has heard it all."""
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                while not await self._quiet():
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise BrokerFailed(f"servers were not quiet after {QUIET_SECONDS:g} s") from None

    async def _quiet(self) -> bool:
        """Whether nothing has come of what was there before.

        Frames leave after a commit, so those of one are on their way when the next is done.
        """
        before, calm = len(self._traffic.said), _calm(self.node, self._traffic)
        for _ in range(2):
            for runner, _ in self._runners.values():
                await runner.commit()
        await self._listen()
        return calm and _calm(self.node, self._traffic) and before == len(self._traffic.said)

    async def _listen(self) -> None:
        assert self._listener is not None
        for message in await self._listener.news():
            if message.data not in self._traffic.heard and message.subject.startswith("fclub.up."):
                self.refused += _tells_more(message)
                for frame in unbundled(message.data, NAME):
                    if frame not in self._frames:
                        self.sent.append(Sent(len(self.visitors), frame))
                    self._frames.add(frame)
            self._traffic.heard.add(message.data)

    def finish(self) -> None:
        self.late = False
        self._loop.run(self._runners[GLOBAL][1].catch_up())
        self.deliver()
        self.refused += _refusals(self._runners[GLOBAL][1].monitor)

    def close(self) -> None:
        for runner, _ in self._runners.values():
            self._loop.run(runner.stop())
        self._runners.clear()
        if self._listener is not None:
            self._loop.run(self._listener.leave())
        self._loop.close()
        self._broker.stop()


def _calm(node: LocalNode, traffic: _Traffic) -> bool:
    """Both sides agree, nothing is on its way, and no work is left to do."""
    agreed = node.sessions.handshake.standing.state == AGREED
    return agreed and traffic.settled and not (node.busy or node.journal.working)


def _broker_with_a_listener(folder: Path, passwords: dict[str, str]) -> LocalBroker:
    """One that also lets somebody read everything: its operator, or whoever has broken into it."""
    servers = {name: password for name, password in passwords.items() if name != LISTENER}
    hub = broker_config(0, folder, servers)["accounts"][HUB]
    may = {"publish": {"deny": [">"]}, "subscribe": {"allow": ["fclub.>"]}}
    listener = {"user": LISTENER, "password": passwords[LISTENER], "permissions": may}
    more = {HUB: hub | {"users": [*hub["users"], listener]}}
    return LocalBroker(folder, servers, more={"accounts": more})


def _tells_more(message: Msg) -> bool:
    """Whether subject or headers say anything that does not follow from frame and configuration."""
    headers = dict(message.headers or {})
    told = json.loads(headers.pop("Nats-Request-Info", "{}"))  # by the broker, of the connection
    if told and (told.pop("acc") != account_of(NAME) or not set(told) <= {"rtt"}):
        return True
    digest, _, attempt = headers.pop("Nats-Msg-Id", "").partition("-")
    follows = digest == blake2b(message.data, digest_size=12).hexdigest() and attempt.isdecimal()
    return message.subject != f"fclub.up.{NAME}" or bool(headers) or not (follows or not digest)


def _refusals(monitor: Monitor) -> int:
    samples = (sample for metric in monitor.refusals.collect() for sample in metric.samples)
    return int(sum(sample.value for sample in samples))


COMPARED = ("Numbered",)
"""Receipts and greetings are left out: how many there are follows from the time of the network."""


class Outside:
    """An attack, carried out from the broker."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    def findings(self) -> Iterator[Finding]:
        near, *rest = self.attack.neighbours()
        other = next(neighbours.second for neighbours in rest if neighbours.factor == inf)
        histories = near.first, near.second, other
        heard = [self._play(history, True, Brokered) for history in histories]
        shown = [self._play(history, True, Running) for history in histories]
        noisy = [self._play(history, False, Brokered) for history in histories[:2]]
        tests = {
            near.name: self.attack.compare(heard[0], heard[1], near.factor),
            "anything": self.attack.compare(heard[0], heard[2], inf),
            "in process": _same(heard, shown),
            "real noise": self._examine(noisy, heard[:2]),
        }
        for name, found in tests.items():
            for test, interval in found.items():
                yield Finding(f"{name}, at the broker", test, interval)

    def _play(self, history: History, quiet: bool, kind: type[Running]) -> Transcript:
        late = self.attack.pair.unit == USER
        run = self.attack.play(brief, history, quiet, late, kind)
        return run._replace(facts=tuple(fact for fact in run.facts if fact[1] in COMPARED))

    def _examine(self, runs: list[Transcript], twins: list[Transcript]) -> dict[str, Interval]:
        """Few runs: what is tested of the noise has a distribution that needs no more."""
        found = self.attack.book(runs, twins)
        strangers = sum(run.keys != twins[0].keys for run in runs)
        found["unclaimed numbers"] = Interval(float(strangers), 0.0, 0.0)
        raw = np.concatenate([run.raw for run in runs])
        found["numbers off the lattice"] = st.off_lattice(raw)
        found["repeated numbers"] = st.repeats(raw)
        if strangers:
            return found
        noise = np.array([run.white - twin.white for run, twin in zip(runs, twins, strict=True)])
        both = noise.reshape(len(noise), -1)
        found["lowest bits"] = st.low_bits(runs[0].raw, runs[1].raw)
        found["variance of both"] = st.variance(both, len(both))
        found["ratio of variances"] = st.variance_ratio(both[:1], both[1:], 1)
        for deviations in (1.0, 2.0, 3.0):
            found[f"share beyond {deviations:g} deviations"] = st.tails(both, deviations)
        entries = noise.transpose(0, 2, 1).reshape(-1, noise.shape[1])
        found["correlation of two releases"] = st.largest_correlation(entries)
        return found


def _same(heard: list[Transcript], shown: list[Transcript]) -> dict[str, Interval]:
    """Without noise both are the same to the last bit."""
    pairs = list(zip(heard, shown, strict=True))
    facts = sum(one.facts != other.facts for one, other in pairs)
    numbers = sum(not np.array_equal(one.raw, other.raw) for one, other in pairs)
    streams = sum(one.keys != other.keys for one, other in pairs)
    counts = {"other facts": facts, "other numbers": numbers, "other streams": streams}
    return {name: Interval(float(count), 0.0, 0.0) for name, count in counts.items()}
