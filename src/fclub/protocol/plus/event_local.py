"""A local server of types that releases a stream of each user, and knows others' users by theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fclub.core.lattice import on_grid, snap
from fclub.core.noisy import Noise
from fclub.core.packing import inside, under
from fclub.core.plus.beliefs import TypeRules, tell_beliefs
from fclub.core.plus.split_sums import SplitSums
from fclub.core.plus.type_sums import RESIDUAL, VISITS, Known, TypeSums, inform, know_users
from fclub.core.statistics import Statistics
from fclub.core.types import Floats, Vector
from fclub.errors import CannotReplace, InvalidMessage
from fclub.privacy.ledger import Stream
from fclub.privacy.sensitivity import Domain, variances_by_entry
from fclub.protocol.exchanges.released import Limits
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.link import Uplink
from fclub.protocol.messages import Message, PhaseStart, write_id, write_statistics
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.messages import Digest, News, Shares
from fclub.protocol.plus.outside import Outside
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.split_local import SplitLocal
from fclub.protocol.seam import OBSERVATIONS, Beginning, Moment, Outlook, State, nothing

RELEASES = 4
"""Users of whom one part releases what is due: exact noise for one takes a millisecond or two."""


class EventLocal(SplitLocal):
    """Learns how many types there are from its own users and from what others released of theirs.

    A released user is one more user of the types, who says less: noise is part of its likelihood. No
    server knows another one's types, for they depend on raw data. At each phase what is due by its
    count is released first, and sent, so that neither depends on how long learning takes. What was
    released and waits to be sent is `unsent`: no reward can be replaced meanwhile. A user's stream has
    a number, another one once the user was forgotten.
    """

    def __init__(
        self,
        crowd: Crowd,
        rules: TypeRules,
        exploration: float,
        releases: PrivateReleases,
        limits: Limits,
        domain: Domain,
        link: Uplink,
        clock: GeometricClock | None = None,
    ) -> None:
        super().__init__(crowd, rules, exploration, False, domain, link, clock)
        self.releases, self.limits, self.outside = releases, limits, Outside()
        self.numbers = list(range(len(self.labels)))
        self.following = len(self.labels)
        self.told: dict[int, int] = {}
        self.unsent, self._releasing = False, -1
        self._guests: Known | None = None
        self._guest_sums = TypeSums.zeros(1, rules.dim)

    @property
    def waiting(self) -> int:
        """Observations that the global server does not know of."""
        return max(0, self.observations - self.releases.closed - sum(self.told.values()))

    @property
    def ids(self) -> list[int]:
        """Numbers of the streams that were told."""
        return list(self.told)

    def _sent(self) -> Floats:
        told = np.array([self.told.get(number, 0) for number in self.numbers], dtype=np.float64)
        sent: Floats = np.bincount(self.labels, told, self.rules.types).astype(np.float64)
        return sent[list(self.types)]

    def add_user(self) -> int:
        row = super().add_user()
        self.releases.add_user(self.users)
        self.numbers.append(self.following)
        self.following += 1
        return row

    def _snapped(self, x: Vector, y: float) -> tuple[Vector, float]:
        """Of a centred reward; streams are sums of whole numbers."""
        self.domain.check(x, y)
        return snap(x, self.domain.constant or 0.0), on_grid(y)

    def observe(self, row: int, x: Vector, y: float) -> None:
        self.people.observe(row, *self._snapped(x, y - self.centre))

    def withhold(self, row: int, x: Vector, y: float) -> None:
        before = Statistics.of(self.users, row).copy()
        self.observe(row, x, y)
        self.releases.withhold(row, Statistics.of(self.users, row) - before)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        if self.unsent:
            raise CannotReplace(
                "what this reward is in may have been released, and is about to be sent"
            )
        snapped, was = self._snapped(x, old - self.centre)
        super().replace(row, snapped, was + self.centre, on_grid(new - self.centre) + self.centre)

    @property
    def final_once_sent(self) -> bool:
        return True

    def go_on(self) -> None:
        """What was not released meanwhile is due at the next phase."""
        self.paused = False

    def begin(self, beginning: Beginning) -> None:
        """What was released is sent again: it costs nothing."""
        if beginning.local_old:
            self.releases.close()
        self.told, self.unanswered = {}, False
        if self.clock is not None and len(self.labels):
            self._report(self.clock.phase)

    def forget(self, row: int) -> int:
        """The next phase does without this user."""
        super().forget(row)
        released = self.releases.forget(row)
        self.numbers[row] = self.following
        self.following += 1
        return released if self.told else 0

    @property
    def busy(self) -> bool:
        return self._releasing >= 0 or super().busy

    def _begin_phase(self, phase: int) -> None:
        self.phase = phase
        if self.in_parts:
            self._releasing = 0
        else:
            if not self.paused:
                self.releases.advance()
            self._learn()

    def part(self) -> Callable[[], None]:
        """Release what is due of a few users; then as for all servers of types."""
        if self._releasing < 0:
            return super().part()
        before = int(self.releases.released.counts.sum())
        following = None if self.paused else self.releases.advance(self._releasing, RELEASES)
        self.unsent |= int(self.releases.released.counts.sum()) > before
        self._releasing = -1 if following is None else following
        if following is None:
            self._learn()
        return nothing

    def _learn(self) -> None:
        if not self.paused:
            self._report(self.phase)
        self._guests = None
        super()._begin_phase(self.phase)

    def due(self, moment: Moment | None = None) -> Callable[[], None] | None:
        return None if self.busy else super().due(moment)

    def _report(self, phase: int) -> None:
        """Send what was released of users who have something new.

        A server with its own clock asks for the others' news also when it has none.
        """
        self.unsent = False
        news, told = [], {}
        for row in np.flatnonzero(self.releases.released.counts > 0).tolist():
            number, released = self.numbers[row], Statistics.of(self.releases.released, row)
            told[number] = released.count
            if self.told.get(number) != released.count:
                noise = float(self.releases.noise[row])
                news.append(News(write_id(number), write_statistics(released), noise))
        if news or told.keys() != self.told.keys() or self.clock is not None:
            self.told, self.unanswered = told, True
            present = tuple(write_id(number) for number in told)
            self.link.to_global(Digest(phase, present, tuple(news)))

    def receive(self, message: Message) -> None:
        match message:
            case Shares():
                self.outside.adopt(message, self.limits)
                self.sharing, self.unanswered, self._guests = message.servers, False, None
            case PhaseStart():
                super().receive(message)
            case _:
                raise InvalidMessage(f"a server of streams does not take a {type(message).__name__}")

    def _outside_sums(self) -> SplitSums | None:
        """What others' users add up to by the types that this server believes in.

        Rewards that are not known one by one say nothing of their variance.
        """
        if not self.outside.known:
            return None
        d, beliefs = self.rules.dim, self.beliefs
        if self._guests is None:
            sizes = beliefs.mean**2 + np.diag(beliefs.covariance)
            noise = Noise(variances_by_entry(self.domain, d), sizes)
            users = self.outside.users(float(self.model.variance[0]), noise)
            sums, everybody = TypeSums.zeros(1, d), np.arange(len(users.counts))
            squares = np.zeros(len(everybody))
            self._guests = know_users(self.learned, users, squares, everybody, sums)
            sums.scalars[[RESIDUAL, VISITS]] = 0.0
            self._guest_sums = sums
        found = SplitSums.zeros(len(self.types), d)
        for new, old in zip(found.sums[3:], self._guest_sums[3:], strict=True):
            new[...] = old
        labels = np.zeros(len(self._guests.people), dtype=np.int64)
        self._add_to(found)(self._guests, labels)
        inform(self.learned, found.sums)
        tell_beliefs(beliefs, found.sums)
        return found

    def streams(self) -> dict[str, Stream]:
        return self.releases.open_streams()

    @property
    def outlook(self) -> Outlook:
        return Outlook(OBSERVATIONS, self.observations, self.clock.next_start if self.clock else None)

    def state(self) -> State:
        arrays, values = super().state()
        outside, known = self.outside.state(self.rules.dim)
        arrays |= outside | under("releases.", self.releases.state())
        return arrays, values | known | {
            "numbers": self.numbers,
            "next_number": self.following,
            "told": list(self.told.items()),
            "unsent": self.unsent,
            "releasing": self._releasing,
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        super().restore(arrays, values)
        self.outside.restore(arrays, values)
        self.releases.restore(inside("releases.", arrays), self.users)
        self.numbers, self.following = list(values["numbers"]), int(values["next_number"])
        self.told, self.unsent = dict(values["told"]), bool(values["unsent"])
        self._releasing, self._guests = int(values["releasing"]), None
