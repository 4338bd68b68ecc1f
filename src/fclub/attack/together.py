"""Two servers at once whose users do the same: their noise must have nothing in common."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

from fclub.attack import statistics as st
from fclub.attack.live import Attack, memory
from fclub.attack.running import NAME, Running, Sent
from fclub.attack.scenes import brief
from fclub.core.types import Vector
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.levels import USER
from fclub.privacy.noise import NoiseSource
from fclub.service.nodes.local_node import LocalNode
from fclub.service.settings import Model

OTHER = "s1"


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


def _visit(nodes: list[LocalNode], user: str, x: Vector, reward: float | None) -> None:
    for node in nodes:
        decision = node.recommend(user, x[None, :], ["item"])
        if reward is not None:
            node.rewards.feedback(decision.id, reward)


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
