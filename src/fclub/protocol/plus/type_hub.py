"""The global server's side of types: adds up what servers send, and answers with the others' sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.plus.type_sums import RESIDUAL, VISITS, TypeSums
from fclub.core.statistics import Statistics
from fclub.core.types import Floats, Matrix
from fclub.errors import InvalidMessage
from fclub.protocol.link import Downlink
from fclub.protocol.plus.type_messages import (
    TypeDigest,
    TypeNews,
    information,
    read_sums,
    read_values,
    to_bytes,
    write_sums,
)
from fclub.protocol.seam import TYPE, Beginning, GlobalOverview, State


class TypeHub:
    """Knows servers with many users by their sums by type; `version` counts what has arrived."""

    def __init__(self, types: int, dim: int) -> None:
        self.types, self.dim = types, dim
        self.sums: dict[int, Floats] = {}
        self.version = 0
        self.frozen: dict[int, Floats] = {}
        self._asked: dict[int, tuple[int, int]] = {}

    def begin(self, server: int, beginning: Beginning) -> None:
        """A lost store's sums stay; any other one sends all of its own again."""
        before = self.known
        known = self.sums.pop(server, None)
        self._asked.pop(server, None)
        if beginning.local_new and known is not None:
            self.frozen[server] = known + self.frozen.get(server, 0.0)
        elif beginning.local_old:
            self.frozen.pop(server, None)
        self.version += self.known != before

    def learn(self, server: int, message: TypeDigest) -> None:
        if message.types != self.types or message.step < 0:
            raise InvalidMessage(f"sums over {message.types} types at step {message.step}")
        self.sums[server] = read_values(message.sums, self.types, self.dim)
        self._asked[server] = message.phase, message.step
        self.version += 1

    def _visits(self, sums: Floats) -> Floats:
        """By type."""
        return read_sums(sums, self.types, self.dim).visits

    def answer(self, link: Downlink) -> bool:
        """Answer all who have sent something, with what was there before the first answer.

        Where answers are answered at once, as in a simulation, this goes on until no server asks.
        """
        if not self._asked:
            return False
        while self._asked:
            asked, self._asked = self._asked, {}
            known = dict(self.sums)
            for server, step in asked.items():
                others = [sums for other, sums in known.items() if other != server]
                news = to_bytes(self._added(others))
                link.to_local(server, TypeNews(*step, len(others), self.types, news))
        return True

    def _added(self, sums: list[Floats]) -> Floats:
        total: Floats = np.sum([self._nothing, *sums, *self.frozen.values()], axis=0)
        return total

    @property
    def _nothing(self) -> Floats:
        return write_sums(TypeSums.zeros(self.types, self.dim))

    @property
    def known(self) -> list[int]:
        """Servers of which there are sums."""
        return sorted(self.sums.keys() | self.frozen.keys())

    @property
    def total(self) -> TypeSums:
        """Of all servers."""
        return read_sums(self._added(list(self.sums.values())), self.types, self.dim)

    def clusters(self) -> list[tuple[int, Statistics]]:
        """Types as clusters that a server with few users can know: (type, statistics).

        A type's sums are information about its centre, in units of the variance of rewards.
        """
        total = self.total
        if not total.scalars[VISITS]:
            return []
        variance = float(total.scalars[RESIDUAL] / total.scalars[VISITS])
        found = []
        for k, row in enumerate(total.rows):
            count = round(float(total.visits[k]))
            if count:
                gram, moment = variance * information(row, self.dim), variance * row[: self.dim]
                found.append((k, Statistics(_within(gram, count), moment, count)))
        return found

    def released_by(self, server: int) -> int:
        """In all sessions."""
        known = [sums[server] for sums in (self.sums, self.frozen) if server in sums]
        return sum(round(float(self._visits(sums).sum())) for sums in known)

    def overview(self) -> list[GlobalOverview]:
        """Types with users, and the servers that know them."""
        total = self._visits(self._added(list(self.sums.values())))
        observed, members = [round(float(visits)) for visits in total], sorted(self.sums)
        return [
            GlobalOverview(
                count, [(server, k) for server in members], k, TYPE, count / max(sum(observed), 1)
            )
            for k, count in enumerate(observed)
            if count
        ]

    def state(self) -> State:
        arrays = {f"types{server}": sums for server, sums in self.sums.items()}
        arrays |= {f"frozen{server}": sums for server, sums in self.frozen.items()}
        return arrays, {
            "servers": list(self.sums),
            "frozen": list(self.frozen),
            "version": self.version,
            "asked": list(self._asked.items()),
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.sums = {server: arrays[f"types{server}"] for server in values["servers"]}
        self.frozen = {server: arrays[f"frozen{server}"] for server in values["frozen"]}
        self.version, self._asked = (
            int(values["version"]),
            {server: (phase, step) for server, (phase, step) in values["asked"]},
        )


def _within(gram: Matrix, count: int) -> Matrix:
    """Rounding of the count must not make the trace larger than that count of observations can have."""
    trace = float(np.trace(gram))
    return gram * min(1.0, count / trace) if trace > 0.0 else gram
