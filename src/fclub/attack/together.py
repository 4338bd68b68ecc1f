"""Two processes at once: two servers whose users do the same, and two copies of one store.

The noise of two servers must have nothing in common. Of two copies that both run, each slot may be
used by one of them: whoever comes second is told so before it has computed anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from fclub.attack import statistics as st
from fclub.attack.live import Attack, memory
from fclub.attack.running import NAME, Running, Sent
from fclub.attack.scenes import EVERYBODY, brief
from fclub.core.types import Vector
from fclub.errors import FclubError
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.levels import USER
from fclub.privacy.noise import NoiseSource
from fclub.service.link.channel import GLOBAL
from fclub.service.nodes.local_node import LocalNode
from fclub.service.settings import Model

OTHER = "s1"
ROUNDS = 8
"""Questions and answers after each visit: a greeting, an offer, a question for a slot, and more."""


@dataclass
class Beside:
    """What was heard of the second server."""

    store: Path
    name: str = OTHER
    sent: list[Sent] = field(default_factory=list)
    notices: list[tuple[int, str]] = field(default_factory=list)
    served: dict[str, bytes] = field(default_factory=dict)
    refused: int = 0


class Together(Running):
    """The second server sees the same visits at the same times, and is never restarted."""

    names = (NAME, OTHER)

    def __init__(
        self, folder: Path, model: Model, source: NoiseSource | None, exact: bool, late: bool
    ) -> None:
        self.beside, self.other = Beside(folder / f"{OTHER}.db"), list[LocalNode]()
        super().__init__(folder, model, source, exact, late)
        self.other.append(self._read_store(OTHER))
        self.other[0].sessions.connected()
        self.deliver()

    def _nodes(self) -> dict[str, LocalNode]:
        return super()._nodes() | dict(zip((OTHER,), self.other, strict=False))

    def _hear(self, name: str, sent: Sent) -> None:
        (self.sent if name == NAME else self.beside.sent).append(sent)

    def visit(self, user: str, x: Vector, reward: float | None) -> None:
        _visit(self.other, user, x, reward)
        super().visit(user, x, reward)

    def close(self) -> None:
        super().close()
        for node in self.other:
            node.store.close()


class Copied(Running):
    """Once its store was copied, a second process runs on the copy, under the same name.

    Both hear what the global server says to that name, and say what they like.
    """

    def __init__(self, *given: Any) -> None:
        self.copies: list[LocalNode] = []
        super().__init__(*given)

    def start_copy(self) -> None:
        self.copy()
        (self.folder / "copy.db").rename(self.folder / "again.db")
        self.copies.append(self._read_store(NAME, "again"))
        self.copies[0].sessions.connected()
        self.deliver()

    def visit(self, user: str, x: Vector, reward: float | None) -> None:
        _visit(self.copies, user, x, reward)
        super().visit(user, x, reward)

    def deliver(self) -> None:
        """Until nobody has anything new to say; both may be told again and again that they disagree."""
        for _ in range(ROUNDS):
            for node in (*self.copies, self.node):
                for _, frame in self._commit(node):
                    self.sent.append(Sent(len(self.visitors), frame))
                    with suppress(FclubError):
                        self.hub.receive(NAME, frame)
            for _, frame in self._commit(self.hub):
                for node in (*self.copies, self.node):
                    with suppress(FclubError):
                        node.receive(GLOBAL, frame)

    def close(self) -> None:
        super().close()
        for node in self.copies:
            node.store.close()


def _visit(nodes: list[LocalNode], user: str, x: Vector, reward: float | None) -> None:
    for node in nodes:
        decision = node.recommend(user, x[None, :], ["item"])
        if reward is not None:
            node.rewards.feedback(decision.id, reward)


def attack_two_copies(attack: Attack) -> list[Finding]:
    """Slots are used once, and one copy at least goes on."""
    history, (one, _, three) = attack.neighbours()[0].first, attack.pair.pace
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        running = Copied(Path(folder), attack.model, attack.source, True, False)
        with closing(running):
            for visit in range(three):
                if visit == one:
                    running.start_copy()
                for user in EVERYBODY:
                    running.visit(user, *history.at(user, visit))
        keys = {(key, row.tobytes()) for key, row in _releases(attack, running)}
    again = len(keys) - len({key for key, _ in keys})
    few = len(keys) <= 1
    found = {"slots used again": again, "copies that both fell silent": few}
    return [Finding("two copies", test, Interval(float(n), 0.0, 0.0)) for test, n in found.items()]


def _releases(attack: Attack, running: Running) -> Iterator[tuple[Any, Vector]]:
    run = attack.reader.read(running)
    return zip(run.keys, run.raw, strict=True)


def attack_two_servers(attack: Attack) -> list[Finding]:
    """What one of them sends minus what the other sends is noise of twice the variance."""
    late, history = attack.pair.unit == USER, attack.neighbours()[0].first
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        running = Together(Path(folder), attack.model, attack.source, True, late)
        with closing(running):
            brief(running, history, attack.pair)
            running.finish()
        first, second = attack.reader.read(running), attack.reader.read(running.beside)
    same = len(first.raw) == len(second.raw)
    found = {"other releases": Interval(float(not same), 0.0, 0.0)}
    if same:
        noise = ((first.white - second.white) / sqrt(2.0)).reshape(1, -1)
        found["variance of the difference"] = st.variance(noise, 1)
    return [Finding("two servers", test, interval) for test, interval in found.items()]


def attack_two(attack: Attack) -> list[Finding]:
    """Both, where there is something to compare: the printed algorithm sends when it likes."""
    found = [] if attack.pair.printed else attack_two_servers(attack)
    return found + (attack_two_copies(attack) if attack.pair.unit == USER else [])
