"""Federations for tests: nodes on real stores, joined by a pump instead of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from fclub.cohorts.members import (
    MemberList,
    in_order,
    make_identity,
    write_identity,
    write_members,
)
from fclub.core.types import Matrix
from fclub.environments.synthetic import Synthetic
from fclub.errors import FclubError
from fclub.policies.base import Policy
from fclub.policies.federated.families import FederatedPolicy
from fclub.policies.registry import make_policy
from fclub.privacy.noise import NoiseSource
from fclub.protocol.families import FAMILIES
from fclub.protocol.federation import Federation
from fclub.protocol.servers import GlobalServer, LocalServer
from fclub.service.link.channel import GLOBAL
from fclub.service.nodes.global_node import GlobalNode, Membership
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import global_node, join_cohorts, lead_cohorts, local_node
from fclub.service.settings import GlobalSettings, LocalSettings, Model, Secure, SecureHub

CLUSTER_BOUND = 1000
MEMBERS = "members.json"


def found(path: Path, servers: int) -> None:
    """Identities of servers, each of its own organisation, and the list that all have accepted."""
    identities = [make_identity(f"s{number}", f"of s{number}") for number in range(servers)]
    for identity in identities:
        write_identity(identity, path / f"{identity.name}.key")
    entries = in_order(identity.entry for identity in identities)
    write_members(MemberList("shops", 1, entries), path / MEMBERS)


class Pump:
    """Commits every node's changes and carries its frames until nobody has anything to say."""

    def __init__(
        self, path: Path, model: Model, servers: int, noise: NoiseSource | None = None
    ) -> None:
        self.path, self.model, self.noise = path, model, noise
        self.time = 0.0
        self.names = [f"s{number}" for number in range(servers)]
        self.away: set[str] = set()
        self.seen: list[bytes] = []
        self.hub = self.open_hub()
        self.locals = {name: self.open_local(name) for name in self.names}
        self.run()

    def open_hub(self, wanted: Membership | None = None) -> GlobalNode:
        store, wanted = str(self.path / "global.db"), wanted or Membership(self.names)
        settings = GlobalSettings(
            model=self.model,
            store=store,
            servers=list(wanted.servers),
            suspended=list(wanted.suspended),
            retired=list(wanted.retired),
            secure=SecureHub(members=str(self.path / MEMBERS)),
        )
        node = global_node(settings, lambda: self.time)
        lead_cohorts(node, settings)
        node.sessions.connected()
        return node

    def open_local(self, name: str) -> LocalNode:
        secure = Secure(identity=str(self.path / f"{name}.key"), members=str(self.path / MEMBERS))
        store = str(self.path / f"{name}.db")
        settings = LocalSettings(model=self.model, name=name, store=store, secure=secure)
        rng = np.random.default_rng(0)
        node = local_node(settings, self.noise, rng, clock=lambda: self.time)
        join_cohorts(node, settings)
        node.sessions.connected()
        return node

    def commit(self, node: LocalNode | GlobalNode) -> list[tuple[str, bytes]]:
        """Work that is due is done first, and snapshots are written to the end."""
        while (part := node.part()) is not None:
            part()
        while node.journal.save_some():
            pass
        if node.cohort is not None:
            node.cohort.run()
        changes = node.take()
        if changes.statements:
            node.store.write(changes.statements)
        node.committed(changes)
        return changes.frames + changes.letters + list(changes.receipts.items())

    def run(self) -> None:
        """Until quiet; what is sent to or from servers in `away` is lost."""
        moved = True
        while moved:
            moved = False
            for peer, frame in self.commit(self.hub):
                if peer not in self.away:
                    self.seen.append(frame)
                    self.locals[peer].receive(GLOBAL, frame)
                    moved = True
            for name, node in self.locals.items():
                for _, frame in self.commit(node):
                    if name not in self.away:
                        self.seen.append(frame)
                        self.hub.receive(name, frame)
                        moved = True

    def tick(self, time: float) -> None:
        """It is that time everywhere; local servers notice first."""
        self.time = time
        for node in (*self.locals.values(), self.hub):
            node.tick()
            self.run()

    def come_back(self, name: str) -> None:
        """Its wire is there again: both ends send again what is not confirmed."""
        self.away.discard(name)
        self.locals[name].sessions.connected()
        self.run()

    def close(self) -> None:
        for node in (self.hub, *self.locals.values()):
            node.store.close()

    def restart(self, snapshot: bool) -> None:
        """Every node is opened again from its store, with a snapshot of two of them or without."""
        if snapshot:
            self.locals["s0"].journal.snapshot()
            self.hub.journal.snapshot()
            self.run()
        self.close()
        self.hub = self.open_hub()
        self.locals = {name: self.open_local(name) for name in self.names}
        self.run()


def totals(pump: Pump) -> tuple[int, int, int]:
    """Observations: own, known to the global server, not known to it yet."""
    own = sum(int(node.server.counts.sum()) for node in pump.locals.values())
    waiting = sum(node.server.status().waiting for node in pump.locals.values())
    return own, pump.hub.server.reported, waiting


def states(pump: Pump) -> list[tuple[dict[str, bytes], str]]:
    """Of all servers, to the last bit."""
    servers: list[LocalServer | GlobalServer] = [pump.hub.server]
    servers += [node.server for node in pump.locals.values()]
    found = []
    for server in servers:
        arrays, values = server.state()
        found.append(({key: array.tobytes() for key, array in arrays.items()}, repr(values)))
    return found


class Live(Federation):
    """The simulation's federation, with servers that keep their own clocks as live ones do."""

    def advance(self, observations: int) -> None:
        for server in self.servers.values():
            work = server.due()
            if work is not None:
                work()
        self.hub.advance()


class OwnClocks(FederatedPolicy):
    def _federation(self, seed: SeedSequence, seeded: bool) -> Federation:
        return Live(self.family, self.rows.row_of, self.rows.first, seed, seeded)


def in_process(name: str, environment: Synthetic, **parameters: Any) -> Policy:
    """The simulation's policy, with phases started as in a live federation."""
    if name.endswith("plus"):
        mixture = type(name, (FAMILIES[name], OwnClocks), {})(**parameters)
        mixture.start(environment.problem, environment.server_of, seed=0)
        for server in mixture.servers.values():
            for part in (server.exchange, server.study):
                if hasattr(part, "clock"):
                    part.clock = mixture.family.clock()
        return mixture
    policy: Any = make_policy(name, cluster_bound=CLUSTER_BOUND, **parameters)
    policy.start(environment.problem, environment.server_of, seed=0)
    policy.after_round = policy.federation.hub.advance
    policy.federation.hub.exchange.clock.phase = policy.federation.hub.phase
    return policy


def model_of(environment: Synthetic, policy: str, **parameters: Any) -> Model:
    problem = environment.problem
    return Model(
        policy=policy,
        dim=problem.dim,
        constant=problem.constant,
        expected_clusters=CLUSTER_BOUND,
        parameters=parameters,
    )


def visits(environment: Synthetic, rounds: int) -> Iterator[tuple[int, Matrix, Callable[[int], float]]]:
    for _ in range(rounds):
        user, items = environment.visit()
        yield user, items, lambda index: environment.feedback(index).reward


def play(pump: Pump, environment: Synthetic, rounds: int) -> list[int]:
    """Visits one after the other; everything is delivered in between."""
    choices = []
    for user, items, reward in visits(environment, rounds):
        node = pump.locals[f"s{environment.server_of[user]}"]
        ids = [str(k) for k in range(len(items))]
        decision = node.recommend(name_of(user), items, ids)
        pump.run()
        node.rewards.feedback(decision.id, reward(decision.index))
        pump.run()
        choices.append(decision.index)
    return choices


def name_of(user: int) -> str:
    return f"user-{user}"


def register(pump: Pump, environment: Synthetic) -> None:
    """Name every user once, in the order of the simulation's rows."""
    items = np.zeros((1, environment.problem.dim))
    items[0, -1] = environment.problem.constant or 1.0
    for user, server in enumerate(environment.server_of):
        pump.locals[f"s{server}"].recommend(name_of(user), items, ["only"])


def refuse(pump: Pump, sender: str, data: bytes) -> FclubError | None:
    try:
        pump.hub.receive(sender, data)
    except FclubError as error:
        return error
    return None
