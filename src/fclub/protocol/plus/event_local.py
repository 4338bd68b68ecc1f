"""A local server with many users that promises something about single observations, the paper's way."""

from __future__ import annotations

from typing import Any

import numpy as np

from fclub.core.lattice import on_grid, snap
from fclub.core.packing import flatten, rebuild
from fclub.core.plus.beliefs import VARIANCE, MeanNews, TypeRules
from fclub.core.plus.evidence import Noise
from fclub.core.plus.type_noise import NoisedTypes, blend, information_of, probabilities, rows_of
from fclub.core.plus.type_sums import TypeSums, know_users
from fclub.core.types import Floats, Vector
from fclub.errors import InvalidMessage
from fclub.privacy.ledger import Stream
from fclub.privacy.sensitivity import Domain
from fclub.protocol.link import Uplink
from fclub.protocol.messages import Message
from fclub.protocol.plus.event_releases import EventReleases
from fclub.protocol.plus.messages import Shares
from fclub.protocol.plus.people import Crowd
from fclub.protocol.plus.releases import variances_by_entry
from fclub.protocol.plus.type_local import TypeLocal
from fclub.protocol.plus.type_messages import (
    TypeDigest,
    TypeNews,
    read_noised_types,
    to_bytes,
    write_noised_types,
)
from fclub.protocol.seam import State


class EventLocal(TypeLocal):
    """Learns types from its own users, and from what the other servers have released of the same types.

    When a slot is due it releases its users' statistics by type, before it learns from the answer. It
    is for simulations, where all users are there from the start (`private.EventFamily`).
    """

    def __init__(
        self,
        crowd: Crowd,
        rules: TypeRules,
        exploration: float,
        releases: EventReleases | None,
        domain: Domain,
        link: Uplink,
    ) -> None:
        super().__init__(crowd, rules, exploration, releases is not None, domain, link)
        self.releases = releases
        self.heard, self.moved = _nothing(rules), 1.0
        self.before: Floats = np.zeros((len(crowd.squares), rules.types))
        self.news = MeanNews(np.zeros((rules.dim, rules.dim)), np.zeros(rules.dim))

    def observe(self, row: int, x: Vector, y: float) -> None:
        """On the grid, as everything is that noise is added to."""
        snapped, centred = snap(x, self.domain.constant or 0.0), on_grid(y - self.centre)
        self.people.observe(row, snapped, centred)

    def withhold(self, row: int, x: Vector, y: float) -> None:
        """All that is learned is released: what must not be is not learned."""

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """On the grid, too."""
        told = on_grid(old - self.centre), on_grid(new - self.centre)
        snapped = snap(x, self.domain.constant or 0.0)
        self.people.replace(row, snapped, *told)
        self._known = None

    def add_user(self) -> int:
        self.before = np.vstack([self.before, np.zeros((1, self.rules.types))])
        return super().add_user()

    def receive(self, message: Message) -> None:
        """The global server does not know it for a large one before its first release: no clusters."""
        if not isinstance(message, Shares):
            super().receive(message)

    def _begin_phase(self, phase: int) -> None:
        """Who has released learns once the answer is there."""
        self.phase, self.step, users = phase, 0, len(self.labels)
        if self.releases is None or self.paused or not self.releases.due(self.observations, users):
            self._begin_pass()
        else:
            self._release(self.releases)

    def _release(self, releases: EventReleases) -> None:
        population = TypeSums.zeros(self.rules.types, self.rules.dim)
        people, weights = np.flatnonzero(self.counts > 0), np.zeros_like(self.before)
        known = know_users(self.model, self.users, self.people.crowd.squares, people, population)
        self._known = known, population
        probabilities(self.model, known, weights)
        self._note_moves(weights)
        sums = releases.release(self.users, weights)
        values = write_noised_types(weights.sum(axis=0), self.counts @ weights, sums)
        self.unanswered = True
        self.link.to_global(TypeDigest(self.phase, 0, self.rules.types, to_bytes(values)))

    def _note_moves(self, weights: Floats) -> None:
        """The share of visits whose labels are others than at the last release.

        Other servers' labels are taken to be as unsteady.
        """
        gone = 0.5 * np.abs(weights - self.before).sum(axis=1)
        self.moved = float(gone @ self.counts) / max(self.observations, 1)
        self.before = weights

    def _adopt(self, message: TypeNews) -> None:
        assert self.releases is not None
        if not self.unanswered or message.types != self.rules.types or message.servers < 0:
            raise InvalidMessage(f"sums over {message.types} types that were not asked for")
        self.sharing, self.unanswered = message.servers, False
        if message.servers:
            noise = message.servers * self.releases.plan.noise
            shape = self.rules.types, self.rules.dim
            now = read_noised_types(message.sums, *shape, noise)
            size = float(np.trace(self.beliefs.covariance))
            self.heard = blend(self.heard, now, self.moved, size)
            self.others = self._as_sums(self.heard)
        self._begin_pass()

    def _as_sums(self, types: NoisedTypes) -> TypeSums:
        """The sums by type that would say the same of the centres.

        How common a type is the server learns from its own users.
        """
        beliefs, sums = self.beliefs, TypeSums.zeros(self.rules.types, self.rules.dim)
        sizes = np.diag(beliefs.covariance) + beliefs.mean**2
        noise = Noise(variances_by_entry(self.domain, self.rules.dim), sizes)
        v = float(beliefs.scalars[VARIANCE])
        sums.rows[:] = rows_of(types, v, beliefs.within, noise)
        sums.visits[:], sums.users[:] = types.visits[:-1], types.users[:-1]
        total = types.users[-1], types.grams[-1], types.moments[-1], float(types.noise[-1])
        self.news = MeanNews(*information_of(*total, v, beliefs.covariance, noise))
        return sums

    @property
    def waiting(self) -> int:
        return self.observations - (0 if self.releases is None else self.releases.covered)

    def streams(self) -> dict[str, Stream]:
        return {} if self.releases is None else self.releases.streams()

    def state(self) -> State:
        arrays, values = super().state()
        arrays |= flatten(self.heard, "heard.") | flatten(self.news, "news.") | {"before": self.before}
        values["moved"] = self.moved
        if self.releases is not None:
            values["slots"] = [self.releases.following, self.releases.covered]
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        super().restore(arrays, values)
        self.heard = rebuild(self.heard, arrays, "heard.")
        self.news = rebuild(self.news, arrays, "news.")
        self.before, self.moved = arrays["before"].copy(), float(values["moved"])
        if self.releases is not None:
            self.releases.following, self.releases.covered = map(int, values["slots"])


def _nothing(rules: TypeRules) -> NoisedTypes:
    K, d = rules.types, rules.dim
    sums = np.zeros((K + 1, d, d)), np.zeros((K + 1, d)), np.zeros(K + 1)
    return NoisedTypes(np.zeros(K + 1), np.zeros(K + 1), *sums)
