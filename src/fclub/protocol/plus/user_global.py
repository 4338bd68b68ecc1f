"""The global server of released users: adds up what servers send and learns types from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.packing import flatten, rebuild
from fclub.core.plus.type_filter import (
    FilterRules,
    Sums,
    add_sums,
    first_types,
    learn_types,
    moved_to,
    read_release,
)
from fclub.core.types import Floats
from fclub.errors import InvalidMessage
from fclub.privacy.slots import SlotPlan
from fclub.protocol.link import Downlink
from fclub.protocol.messages import Message, PhaseStart
from fclub.protocol.plus.slots import PERIOD
from fclub.protocol.plus.type_messages import (
    Release,
    Released,
    check_release,
    read_noised,
    write_types,
)
from fclub.protocol.seam import TYPE, Beginning, Gathering, GlobalOverview, State, part_known

KEPT = 64
"""Versions of the centres that are kept: a release taken at older ones says nothing."""


class UserGlobal(Gathering):
    """Everything that it knows was released: what it does with that is post-processing.

    `version` counts steps of the filter; a release says at which version's centres it was taken. Of
    each server that has released something it knows the last period and slot, and the public numbers
    of users and visits. Servers with few users, which keep to themselves, hear nothing.
    """

    def __init__(self, servers: list[int], rules: FilterRules, plan: SlotPlan, link: Downlink) -> None:
        self.servers, self.rules, self.plan, self.link = sorted(servers), rules, plan, link
        self.types = first_types(rules)
        self.phase = self.version = 0
        self.told: dict[int, list[int]] = {}
        self.used: dict[int, int] = {}
        self._centres: dict[int, Floats] = {0: self.types.centres}
        self._arrived: list[Sums] = []
        self._heard = False

    def begin_phase(self, phase: int) -> None:
        """Let every server release what is due; learn from all of it at once."""
        self.phase = phase
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        self._learn()

    def advance(self, overdue: bool = False) -> None:
        """Live: learn from what has come."""
        self.phase += self._learn()

    def invite(self, servers: int) -> None:
        """Live: servers 0, 1, … take part; they send the first message."""
        self.servers = list(range(servers))

    def begin(self, server: int, beginning: Beginning) -> None:
        """Slots are used once, in whichever session: there is only something to tell."""
        self.used[server] = max(self.used.get(server, 0), beginning.used)
        if server in self.told:
            self._tell(server)

    def used_by(self, server: int) -> int:
        period, slot, *_ = self.told.get(server, [0, -1])
        return max(self.used.get(server, 0), period * PERIOD + slot + 1)

    def receive(self, server: int, message: Message) -> None:
        match message:
            case Release() if server in self.servers:
                self._keep(server, message)
            case _:
                kind = type(message).__name__
                raise InvalidMessage(f"the global server does not take a {kind} from server {server}")

    def _keep(self, server: int, message: Release) -> None:
        check_release(message, self.plan.releases, self.rules.types)
        if [message.period, message.slot] <= self.told.get(server, [0, -1])[:2]:
            raise InvalidMessage(f"slot {message.slot} of period {message.period} was used before")
        values = read_noised(message.sums, self.rules.types, self.rules.dim)
        people = float(message.users), self.plan.visits[message.slot]
        noise, step = self.plan.noise(message.slot) ** 2, self.plan.step(message.slot)
        sums = read_release(step * values, *people, noise, self.rules)
        if message.version in self._centres:
            at = self._centres[message.version]
            self._arrived.append(moved_to(sums, at, self.types, self.rules))
        self._heard = True
        self.told[server] = [message.period, message.slot, message.users, message.visits]

    def _learn(self) -> bool:
        """Move the types by what has arrived, and tell all servers that have released something."""
        if not self._heard:
            return False
        if self._arrived:
            self.types = learn_types(self.types, add_sums(self._arrived), self.rules)
        self._arrived, self._heard = [], False
        self.version += 1
        self._centres[self.version] = self.types.centres
        self._centres.pop(self.version - KEPT, None)
        for server in sorted(self.told):
            self._tell(server)
        return True

    def _tell(self, server: int) -> None:
        users, visits = (sum(told[place] for told in self.told.values()) for place in (2, 3))
        told = self.version, len(self.told), users, visits, self.rules.types
        self.link.to_local(server, Released(*told, write_types(self.types)))

    @property
    def next_phase(self) -> None:
        """Live, local servers go by their own visits."""

    @property
    def missing(self) -> set[int]:
        """Nothing: no server waits for another."""
        return set()

    def limit(self, clusters: int) -> None:
        """The slots are limit enough."""

    @property
    def reported(self) -> int:
        return sum(visits for *_, visits in self.told.values())

    def released_by(self, server: int) -> int:
        """Visits, which are public."""
        return self.told[server][-1] if server in self.told else 0

    def paid_by(self, server: int) -> float:
        """Slots are paid one by one; those that were left out cost nothing."""
        return (self.told[server][1] + 1) / self.plan.releases if server in self.told else 0.0

    def overview(self) -> list[GlobalOverview]:
        """All types, with visits in proportion to their shares; together they are all visits."""
        if not self.told:
            return []
        counts = [int(self.reported * share) for share in self.types.shares]
        counts[0] += self.reported - sum(counts)
        members, d, first = sorted(self.told), self.rules.dim, np.diag(self.rules.spread)
        parts = [slice(k * d, (k + 1) * d) for k in range(self.rules.types)]
        return [
            GlobalOverview(
                observations=count,
                members=[(server, k) for server in members],
                number=k,
                kind=TYPE,
                weight=float(self.types.shares[k]),
                known=part_known(self.types.covariance[parts[k], parts[k]], first),
            )
            for k, count in enumerate(counts)
        ]

    def state(self) -> State:
        arrays = flatten(self.types, "released.")
        arrays |= {f"centres{version}": centres for version, centres in self._centres.items()}
        for number, sums in enumerate(self._arrived):
            arrays |= flatten(sums, f"arrived{number}.")
        return arrays, {
            "phase": self.phase,
            "version": self.version,
            "told": list(self.told.items()),
            "used": list(self.used.items()),
            "kept": list(self._centres),
            "heard": self._heard,
            "arrived": [[sums.people, sums.visits, sums.noise] for sums in self._arrived],
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.types = rebuild(self.types, arrays, "released.")
        self.phase, self.version = int(values["phase"]), int(values["version"])
        self.told, self._heard = dict(values["told"]), bool(values["heard"])
        self.used = dict(values["used"])
        self._centres = {version: arrays[f"centres{version}"] for version in values["kept"]}
        self._arrived = [
            Sums(*(arrays[f"arrived{number}.{name}"] for name in Sums._fields[:3]), *told)
            for number, told in enumerate(values["arrived"])
        ]
