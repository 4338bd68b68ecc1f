"""A local server that treats all users as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fclub.core.lattice import on_grid, snap
from fclub.core.packing import flatten, inside, under, with_row
from fclub.core.plus.evidence import Noise, noisy_information
from fclub.core.plus.rounds import MixtureRound, feedback, recommend
from fclub.core.plus.type_rounds import keep
from fclub.core.pooled import Visitors
from fclub.core.statistics import Packed, Statistics, pack_statistics, replace_reward, unpack_statistics
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.errors import CannotForget, InvalidMessage
from fclub.privacy.ledger import Stream
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.link import Uplink
from fclub.protocol.messages import Message, PhaseStart, write_id, write_statistics
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.messages import check_share, read_released
from fclub.protocol.plus.releases import Releases, variances_by_entry
from fclub.protocol.pooled.messages import Others, Sums
from fclub.protocol.pooled.rules import PooledRules
from fclub.protocol.seam import (
    OBSERVATIONS,
    AtOnce,
    Beginning,
    Bound,
    LocalOverview,
    Outlook,
    Slotted,
    State,
    part_known,
)

CLUSTER = 0
"""The id and the global cluster of everybody."""


class Kept(NamedTuple):
    """What a live server keeps of each user, so that it can forget one: data, and those released."""

    users: Packed
    covered: Packed
    squares: Floats

    @staticmethod
    def zeros(rows: int, dim: int) -> Kept:
        return Kept(Packed.zeros(rows, dim), Packed.zeros(rows, dim), np.zeros(rows))


class PooledLocal(AtOnce):
    """One Gaussian in `model`, from own observations and from what other servers have released.

    The server is one stream: which users it has decides nothing that is sent, and releases follow the
    number of its observations. With a clock of its own it looks for a release when its own count calls
    for it, as a live one does; without one it waits for the global server to start a phase.
    """

    unanswered = paused = False
    used = 0

    def __init__(
        self,
        visitors: Visitors,
        model: MixtureRound,
        rules: PooledRules,
        domain: Domain,
        releases: Releases,
        link: Uplink,
        clock: GeometricClock | None = None,
    ) -> None:
        self.visitors = self.room = visitors
        self.model, self.rules, self.domain = model, rules, domain
        self.releases, self.link, self.clock = releases, link, clock
        self.dim = model.theta.shape[1]
        rows = 0 if clock is None else len(visitors.counts)
        self.kept = self.kept_room = Kept.zeros(rows, self.dim)
        self.told = 0
        self.outside: tuple[Statistics, float, int] = (Statistics.zeros(self.dim), 0.0, 0)
        self._refresh()

    def add_user(self) -> int:
        self.visitors, self.room = with_row(self.visitors, self.room)
        if self.clock is not None:
            self.kept, self.kept_room = with_row(self.kept, self.kept_room)
        return len(self.counts) - 1

    def recommend(self, row: int, items: Matrix) -> int:
        return recommend(self.model, 0, items)

    def observe(self, row: int, x: Vector, y: float) -> None:
        self.counts[row] += 1
        if self.clock is not None:
            rounded = snap(x, self.model.constant), on_grid(y - self.model.centre)
            keep(self.kept.users, self.kept.squares, row, *rounded)
        feedback(self.model, 0, x, y)

    def withhold(self, row: int, x: Vector, y: float) -> None:
        total = self.model.users
        before = Statistics.of(total, 0).copy()
        self.observe(row, x, y)
        part = Statistics.of(total, 0) - before
        self.releases.withhold(0, part)
        if self.clock is not None:
            covered = self.kept.covered
            covered.gram[row] += part.gram
            covered.moment[row] += part.moment
            covered.counts[row] += part.count

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        model = self.model
        told = on_grid(old - model.centre), on_grid(new - model.centre)
        x = snap(x, model.constant)
        replace_reward(self.kept.users, self.kept.squares, row, x, *told)
        replace_reward(model.users, model.squares, 0, x, *told)
        self._refresh()

    @property
    def slotted(self) -> Slotted | None:
        return None

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        """What was not released meanwhile is due at the next phase."""
        self.paused = False

    def begin(self, beginning: Beginning) -> None:
        if beginning.local_old:
            self.releases.close()
            self._cover()
        self.told = 0
        self._tell()

    def bound(self, row: int) -> Bound:
        model = self.model
        told = model.theta[0].copy(), model.covariance[0].copy(), model.exploration
        return Bound(*told, model.centre, 1.0 - model.centre)

    def stored(self, row: int) -> Statistics:
        return Statistics.of(self.kept.users, row).copy()

    def forget(self, row: int) -> int:
        """The sums lose the user's part; what was released of it stays in the count of observations.

        So the schedule of releases, which follows that count, goes on as it was paid for.
        """
        kept, total = self.kept, self.model.users
        if kept.users.counts[row] != self.counts[row]:
            raise CannotForget("some of this user's data were added up before users were kept apart")
        released = int(kept.covered.counts[row])
        self.releases.withdraw(0, Statistics.of(kept.covered, row))
        total.gram[0] -= kept.users.gram[row]
        total.moment[0] -= kept.users.moment[row]
        total.counts[0] -= kept.users.counts[row] - released
        self.model.squares[0] -= kept.squares[row]
        kept.users.clear(row)
        kept.covered.clear(row)
        kept.squares[row], self.counts[row] = 0.0, 0
        self._refresh()
        return released

    def due(self) -> Callable[[], None] | None:
        if self.clock is None or self.observations < max(1, self.clock.next_start):
            return None
        return self._begin_phase

    def _begin_phase(self) -> None:
        assert self.clock is not None
        self.clock.advance(self.observations)
        self._release()

    def receive(self, message: Message) -> None:
        match message:
            case PhaseStart() if self.clock is None:
                self._release()
            case Others():
                known = read_released(message.statistics, message.noise, self.dim)
                check_share(known, message.servers, self.rules)
                self.outside = (known.statistics, known.noise, message.servers)
                self._refresh()
            case _:
                raise InvalidMessage(f"a local server does not take a {type(message).__name__}")

    def _release(self) -> None:
        """Release what is due by its count, and tell it."""
        if not self.paused:
            before = int(self.releases.released.counts[0])
            self.releases.advance()
            if self.releases.released.counts[0] > before:
                self._cover()
            self._tell()
        self._refresh()

    def _tell(self) -> None:
        """Send all that has been released, if it is more than before."""
        released = Statistics.of(self.releases.released, 0)
        if released.count > self.told:
            self.told = released.count
            noise = float(self.releases.noise[0])
            self.link.to_global(Sums(write_id(CLUSTER), write_statistics(released), noise))

    def _cover(self) -> None:
        """All that is kept of users has been released, or never will be."""
        for covered, known in zip(self.kept.covered, self.kept.users, strict=True):
            covered[...] = known

    def _refresh(self) -> None:
        """Compute the Gaussian anew from all that is known."""
        known = [self.outside[:2]]
        if self.rules.released_only:
            own = Statistics.of(self.releases.released, 0)
            known.append((own, float(self.releases.noise[0])))
        else:
            known.append((Statistics.of(self.model.users, 0), 0.0))
        precision, vector = self.rules.prior.copy(), np.zeros(self.dim)
        noise = Noise(variances_by_entry(self.domain, self.dim), 1.0 / np.diag(self.rules.prior))
        for known_of, stated in known:
            released = known_of.gram, known_of.moment, stated
            Q, q = noisy_information(*released, self.rules.variance, noise)
            precision, vector = precision + Q, vector + q
        self.model.covariance[0] = np.linalg.inv(precision)
        self.model.vector[0] = vector
        self.model.theta[0] = self.model.covariance[0] @ vector

    @property
    def counts(self) -> Counts:
        return self.visitors.counts

    @property
    def observations(self) -> int:
        return int(self.model.users.counts[0])

    @property
    def waiting(self) -> int:
        return self.observations - self.releases.closed - self.told

    @property
    def served_by(self) -> Indices:
        return np.zeros(len(self.counts), dtype=np.int64)

    @property
    def theta(self) -> Floats:
        """Estimates of rewards as they are; what was learned from are centred ones."""
        theta = np.tile(self.model.theta[0], (len(self.counts), 1))
        if self.domain.constant is not None:
            theta[:, -1] += CENTRE / self.domain.constant
        return theta

    @property
    def ids(self) -> list[int]:
        return [CLUSTER] if self.told else []

    @property
    def group_of(self) -> Indices:
        return np.full(len(self.counts), CLUSTER if self.told else CLUSTER - 1)

    def streams(self) -> dict[str, Stream]:
        return self.releases.open_streams()

    def overview(self) -> list[LocalOverview]:
        """Everybody, if there is anybody."""
        if not len(self.counts):
            return []
        heard, (others, _, servers) = CLUSTER if self.told else None, self.outside
        users, own = len(self.counts), self.observations
        known = part_known(self.model.covariance[0], np.linalg.inv(self.rules.prior))
        told = heard, heard, users, own, others.count, self.waiting, servers + 1
        return [LocalOverview(*told, known=known)]

    @property
    def outlook(self) -> Outlook:
        return Outlook(OBSERVATIONS, self.observations, self.clock.next_start if self.clock else None)

    def state(self) -> State:
        others, noise, servers = self.outside
        arrays = flatten(self.model, "model.") | {"visits": self.counts}
        arrays |= flatten(self.kept, "kept.") | under("releases.", self.releases.state())
        arrays |= pack_statistics([others], self.dim, "outside.")
        clock = None if self.clock is None else self.clock.state()
        return arrays, {"told": self.told, "noise": noise, "servers": servers, "clock": clock}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        while len(self.counts) < len(arrays["visits"]):
            self.add_user()
        self.counts[:] = arrays["visits"]
        for name, array in flatten(self.kept, "kept.").items():
            array[...] = arrays.get(name, 0)
        for name, array in flatten(self.model, "model.").items():
            array[...] = arrays[name]
        self.releases.restore(inside("releases.", arrays), self.model.users)
        (others,) = unpack_statistics(arrays, "outside.")
        self.outside = (others, float(values["noise"]), int(values["servers"]))
        self.told = int(values["told"])
        if self.clock is not None:
            self.clock.restore(values["clock"])
