"""A whole federation in one process: all local servers, the global server, one clock for them all."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.random import SeedSequence

from fclub.core.packing import inside, under
from fclub.core.types import Indices
from fclub.privacy.ledger import ReleaseEvent
from fclub.privacy.noise import DiscreteNoise, NoiseSource, NoNoise, SeededNoise
from fclub.protocol.interfaces.family import Family, Place
from fclub.protocol.interfaces.learner import State
from fclub.protocol.link import Communications, InProcessLink
from fclub.protocol.servers import LocalServer


class Federation:
    """Users are in rows sorted by server: server s has the rows `first[s]` to `first[s + 1]`.

    `row_of` is the row of every user. A server without users takes no part. `seed` decides graphs,
    samplers and, if `seeded`, the noise as well, which is for simulation only.
    """

    def __init__(
        self,
        family: Family,
        row_of: Indices,
        first: Indices,
        seed: SeedSequence,
        seeded: bool,
        link: InProcessLink | None = None,
    ) -> None:
        noise_seed, own_seed = seed.spawn(2)
        self.family, self.row_of, self.seeded = family, row_of, seeded
        self.rng = np.random.default_rng(noise_seed)
        self.ledger = family.ledger(seeded)
        self.link = link or InProcessLink(family.decode)
        self.users = family.users(len(row_of))
        noise, bounds = self._noise(), [*pairwise(map(int, first))]
        self.servers: dict[int, LocalServer] = {}
        for server, own in enumerate(own_seed.spawn(len(bounds))):
            start, stop = bounds[server]
            if start < stop:
                uplink, rng = self.link.uplink(server), np.random.default_rng(own)
                place = Place(str(server), uplink, noise, self.ledger, rng)
                users = self.users.slice(start, stop)
                self.servers[server] = family.local_server(place, users, live=False)
        self.hub = family.global_server(list(self.servers), self.link)
        self.link.connect(self.hub, self.servers)
        self.clock = family.clock()
        self.advance(0)

    def _noise(self) -> NoiseSource:
        if self.family.privacy is None:
            return NoNoise()
        return SeededNoise(self.rng) if self.seeded else DiscreteNoise()

    def advance(self, observations: int) -> None:
        """Start a phase if this number of observations calls for one."""
        if self.clock.advance(observations):
            self.hub.begin_phase(self.clock.phase)

    def state(self) -> State:
        arrays, hub = self.hub.state()
        drawn = self.family.privacy is not None and self.seeded
        values: dict[str, Any] = {
            "clock": self.clock.state(),
            "hub": hub,
            "communications": vars(self.link.communications),
            "noise": self.rng.bit_generator.state if drawn else None,
            "ledger": msgspec.to_builtins(self.ledger.events if self.ledger else []),
            "servers": {},
        }
        for number, server in self.servers.items():
            own, values["servers"][str(number)] = server.state()
            arrays |= under(f"server{number}.", own)
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.clock.restore(values["clock"])
        self.hub.restore(arrays, values["hub"])
        self.link.communications = Communications(**values["communications"])
        if values["noise"] is not None:
            self.rng.bit_generator.state = values["noise"]
        if self.ledger is not None:
            self.ledger.restore(msgspec.convert(values["ledger"], list[ReleaseEvent]))
        for number, server in self.servers.items():
            server.restore(inside(f"server{number}.", arrays), values["servers"][str(number)])
