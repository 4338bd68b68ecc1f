"""One live server and its hub in a process, whose long work a test does part by part."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from tests.parts import present

from fclub.privacy.noise import NoNoise, SeededNoise
from fclub.protocol.families import make_family
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message

DIM, HALF, USERS = 3, float(np.sqrt(0.5)), 12
PARAMETERS: dict[str, dict[str, Any]] = {
    "fclub-plus": {"types": 4, "ratio": 1.3},
    "cdp-fclub-plus": {"unit": "event", "types": 4, "ratio": 1.3},
}


class Recording(InProcessLink):
    """Remembers what servers send; whoever is `deaf` gets no answers."""

    def __init__(self, decode: Any) -> None:
        super().__init__(decode)
        self.sent: list[Message] = []
        self.deaf = False

    def from_local(self, server: int, message: Message) -> None:
        self.sent.append(message)
        if not self.deaf:
            super().from_local(server, message)


class Alone:
    """A live server with its hub; `finish` does all work that waits."""

    def __init__(self, name: str, in_parts: bool = True, **parameters: Any) -> None:
        self.family = make_family(name, Shape(DIM, 8, HALF), PARAMETERS[name] | parameters)
        self.link = Recording(self.family.decode)
        self.noise, books = np.random.default_rng(3), self.family.ledger(seeded=True)
        source = SeededNoise(self.noise) if self.family.privacy else NoNoise()
        place = Place("0", self.link.uplink(0), source, books, np.random.default_rng(0))
        self.ledger = books
        self.server: Any = self.family.local_server(place, self.family.users(0), live=True)
        self.server.in_parts = in_parts
        assert self.server.in_parts == in_parts
        self.hub: Any = self.family.global_server([], self.link)
        self.link.connect(self.hub, {0: self.server})
        self.hub.invite(1)
        self.rng = np.random.default_rng(2)
        for _ in range(USERS):
            self.server.add_user()

    def observe(self, row: int) -> None:
        x = np.append(self.rng.uniform(-0.4, 0.4, DIM - 1), HALF)
        self.server.observe(row, x, float(self.rng.random() < 0.5))

    def begin(self) -> None:
        """Begin what is due."""
        work = self.server.due()
        if work is not None:
            work()

    def finish(self) -> None:
        while self.server.busy:
            self.server.part()()
            self.hub.advance()

    def do_parts(self, parts: int) -> None:
        """At most so many; the hub answers after each."""
        for _ in range(parts):
            if self.server.busy:
                self.server.part()()
                self.hub.advance()

    def visit(self, rounds: int) -> None:
        for t in range(rounds):
            self.observe(t % USERS)
            self.begin()
            self.hub.advance()
            self.finish()

    def work_on(self) -> None:
        """Visits until some work is begun and not done."""
        while not self.server.busy:
            self.observe(int(self.rng.integers(USERS)))
            self.begin()

    def same_as(self, other: Alone) -> bool:
        (arrays, values), (others, its) = self.server.state(), other.server.state()
        return (
            values == its
            and arrays.keys() == others.keys()
            and all(np.array_equal(arrays[key], others[key]) for key in arrays)
        )

    def twin_of(self, other: Alone) -> Alone:
        """Continue from the state of another one, which has the same parameters."""
        self.server.restore(*deepcopy(other.server.state()))
        self.hub.restore(*deepcopy(other.hub.state()))
        if other.ledger is not None:
            present(self.ledger).restore(other.ledger.events)
        self.noise.bit_generator.state = other.noise.bit_generator.state
        self.rng.bit_generator.state = other.rng.bit_generator.state
        return self
