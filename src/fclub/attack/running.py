"""A federation of one local server on real stores, whose wire is read by the attacker."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fclub.attack.pairs import START, VISIT
from fclub.cohorts.members import (
    MemberList,
    in_order,
    make_identity,
    write_identity,
    write_members,
)
from fclub.core.types import Vector
from fclub.errors import FclubError, NotAgreed
from fclub.privacy.noise import NoiseSource
from fclub.service.link.channel import GLOBAL, Numbered, decode_frame
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.local_node import LocalNode
from fclub.service.nodes.parts import (
    adds_up_in_secret,
    family_of,
    global_node,
    join_cohorts,
    lead_cohorts,
    local_node,
    node_with_noise,
)
from fclub.service.settings import GlobalSettings, LocalSettings, Model, Secure, SecureHub
from fclub.service.store.backup import backup_store

NAME = "s0"
BESIDE = ("s1", "s2")
"""Members without users, with whom it adds up where sums are secure."""

MEMBERS = "members.json"

MOMENTS = 5
"""Of a visit, in which secure sums go on."""


class Sent(NamedTuple):
    """A frame of the local server, and how many visits there were before, or seconds."""

    visits: int
    frame: bytes


class Sum(NamedTuple):
    """What a global server has added up in a slot."""

    slot: int
    members: int
    share: int
    sums: bytes


class Wire(Protocol):
    """What is known of one server after a run: its frames, its log, its store, and secure sums."""

    name: str
    sent: list[Sent]
    notices: list[tuple[int, str]]
    served: dict[str, bytes]
    refused: int
    sums: list[Sum]

    @property
    def store(self) -> Path: ...


class Running:
    """Everything that is sent is stored first, then delivered, then read. Time goes on by visits.

    Without a source the noise is drawn as a deployment draws it. `late` holds the global server's
    messages back until `finish`: what is released then does not depend on earlier noise. `notices` are
    lines of the log with the number of visits before, `served` is what each user's items would be
    scored with at the end, before what was held back arrives.
    """

    name = NAME
    names: tuple[str, ...] = (NAME,)

    def __init__(
        self, folder: Path, model: Model, source: NoiseSource | None, exact: bool, late: bool
    ) -> None:
        self.folder, self.model, self.source, self.exact = folder, model, source, exact
        self.late, self._waiting = late, list[tuple[str, bytes]]()
        self.sent: list[Sent] = []
        self.notices: list[tuple[int, str]] = []
        self.served: dict[str, bytes] = {}
        self.visitors: list[str] = []
        self.refused = 0
        self.sums: list[Sum] = []
        self.now = START
        self.partners: dict[str, LocalNode] = {}
        self.secure = adds_up_in_secret(family_of(model))
        self.moments = MOMENTS if self.secure else 1
        if self.secure:
            self.names = (NAME, *BESIDE)
            _found(folder, self.names)
        self.hub = self._open_hub()
        self.node = self._open()
        for name in self.names[1:] if self.secure else ():
            self.partners[name] = self._read_store(name)
            self.partners[name].sessions.connected()
        self.deliver()

    @property
    def store(self) -> Path:
        return self.folder / f"{NAME}.db"

    def _open_hub(self) -> GlobalNode:
        store = str(self.folder / "global.db")
        members = SecureHub(members=str(self.folder / MEMBERS)) if self.secure else SecureHub()
        settings = GlobalSettings(model=self.model, store=store, servers=[*self.names], secure=members)
        hub = global_node(settings, lambda: self.now)
        lead_cohorts(hub, settings)
        if hub.cohort is not None:
            tell = hub.cohort.summed

            def summed(*told: Any) -> None:
                """Answered late, it answers nothing: members go on at the point they know."""
                self.sums.append(Sum(*told))
                if not self.late:
                    tell(*told)

            hub.cohort.summed = summed
        return hub

    def _open(self) -> LocalNode:
        node = self._read_store()
        node.sessions.connected()
        return node

    def _settings(self, name: str, file: str) -> LocalSettings:
        store = str(self.folder / f"{file}.db")
        return LocalSettings(model=self.model, name=name, store=store, secure=key_of(self.folder, name))

    def _read_store(self, name: str = NAME, file: str | None = None) -> LocalNode:
        settings = self._settings(name, file or name)
        rng = np.random.default_rng(0)
        if self.exact:
            node = local_node(settings, self.source, rng, clock=lambda: self.now)
        else:
            assert self.source is not None
            node = node_with_noise(settings, self.source, rng, clock=lambda: self.now)
        join_cohorts(node, settings)
        return node

    def _stop(self, node: LocalNode | GlobalNode) -> None:
        node.store.close()

    def visit(self, user: str, x: Vector, reward: float | None) -> None:
        """Somebody is shown an item; without a reward nothing is learned."""
        decision = self.node.recommend(user, x[None, :], ["item"])
        if reward is not None:
            self.node.rewards.feedback(decision.id, reward)
        self.wait(user)

    def wait(self, user: str = "") -> None:
        """The time that a visit takes, of somebody or of nobody; then slots may be due or over."""
        self.visitors.append(user)
        for _ in range(self.moments):
            self.now += VISIT / self.moments
            self.deliver()
            self._tick()

    def _tick(self) -> None:
        for node in (*self._nodes().values(), self.hub):
            node.tick()
        self.deliver()

    def forget(self, user: str) -> None:
        self.node.users.forget(user)
        self.deliver()
        self._tick()

    def deliver(self) -> None:
        """Until nobody has anything to say."""
        moved = True
        while moved:
            moved = False
            for peer, frame in self._commit(self.hub):
                moved = True
                if self.late and isinstance(decode_frame(frame, GLOBAL), Numbered):
                    self._waiting.append((peer, frame))
                else:
                    self._nodes()[peer].receive(GLOBAL, frame)
            for name, node in self._nodes().items():
                for _, frame in self._commit(node):
                    moved = True
                    self._hear(name, Sent(self._when(), frame))
                    try:
                        self.hub.receive(name, frame)
                    except FclubError:  # an honest server sends nothing that is refused
                        self.refused += 1

    def _when(self) -> int:
        return int(self.now - START) if self.secure else len(self.visitors)

    def _nodes(self) -> dict[str, LocalNode]:
        return {NAME: self.node, **self.partners}

    def _hear(self, name: str, sent: Sent) -> None:
        if name == NAME:
            self.sent.append(sent)

    def _commit(self, node: LocalNode | GlobalNode) -> list[tuple[str, bytes]]:
        while (part := node.part()) is not None:
            part()
        while node.journal.save_some():
            pass
        if node.cohort is not None:
            node.cohort.run()
        changes = node.take()
        node.store.write(changes.statements)
        node.committed(changes)
        self.notices += [(len(self.visitors), notice) for notice in changes.notices]
        return changes.frames + changes.letters + list(changes.receipts.items())

    def restart(self, snapshot: bool) -> None:
        """The process ends and another one opens the store."""
        if snapshot:
            self.node.journal.snapshot()
            self.deliver()
        self._stop(self.node)
        self.node = self._open()
        self.deliver()

    def copy(self) -> None:
        """Somebody copies the store."""
        backup_store(self.store, self.folder / "copy.db")

    def put_back(self) -> None:
        """The copy takes the place of the store, as plain files do."""
        self._stop(self.node)
        for rest in ("-wal", "-shm"):
            Path(f"{self.store}{rest}").unlink(missing_ok=True)
        shutil.copy(self.folder / "copy.db", self.store)
        self.node = self._open()
        self.deliver()
        self._tick()

    def finish(self) -> None:
        """Deliver what was held back, unless its session is over."""
        effects = [array.tobytes() for array in self.node.catalogue.offer().effects]
        for user, row in self.node.users.rows.items():
            theta, inverse, *numbers = self.node.server.bound(row)
            told = theta.tobytes() + inverse.tobytes() + repr(numbers).encode()
            self.served[user] = told + b"".join(effects)
        self.late = False
        for peer, frame in self._waiting:
            with suppress(NotAgreed):
                self._nodes()[peer].receive(GLOBAL, frame)
        self.deliver()

    def close(self) -> None:
        """Stop all servers; their stores stay."""
        self._stop(self.hub)
        for node in (self.node, *self.partners.values()):
            self._stop(node)


def key_of(folder: Path, name: str) -> Secure:
    """Settings of a member, which one without secure sums has no use for."""
    return Secure(identity=str(folder / f"{name}.key"), members=str(folder / MEMBERS))


def _found(folder: Path, names: tuple[str, ...]) -> None:
    """Keys of members, each of its own organisation, and the list that all have accepted."""
    identities = [make_identity(name, f"of {name}") for name in names]
    for identity in identities:
        write_identity(identity, folder / f"{identity.name}.key")
    entries = in_order(identity.entry for identity in identities)
    write_members(MemberList("audit", 1, entries), folder / MEMBERS)
