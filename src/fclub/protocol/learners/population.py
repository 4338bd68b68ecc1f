"""Users served from their own data and a population of tastes that was released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fclub.core.packing import flatten, rebuild, with_room, with_row
from fclub.core.population.contribution import PublicPoint, add_contributions, release_length
from fclub.core.population.model import VARIANCE, Population, PublicModel
from fclub.core.population.rounds import (
    PRIOR_ODDS,
    SURE,
    PopulationRound,
    ask_users,
    count_visit,
    feedback,
    prior_of,
    serve,
)
from fclub.core.statistics import Packed, replace_reward
from fclub.core.types import Counts, Floats, Indices, Vector
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Bound, Job, PopulationNews, State
from fclub.protocol.interfaces.overview import LocalOverview, part_known


class PopulationLearner:
    """Each user's taste given its own data, under the public start and the released population.

    With `pooled` the evidence of all users of this server decides between the two, otherwise that of
    each user alone. It contributes whole numbers: the slopes of its users at a public point.
    """

    supports = frozenset({FORGET, REPLACE})

    def __init__(
        self, users: Packed, model: PublicModel, domain: Domain, pooled: bool, exploration: float
    ) -> None:
        self._users = self._room = users
        self.model, self.domain, self.pooled, self.exploration = model, domain, pooled, exploration
        self.centre = CENTRE if domain.constant is not None else 0.0
        self._take(Population.start(model.dim))
        self.start = self.released
        self.odds = np.array([-2.0 * SURE])
        self.visits, self.asked = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        self.servers, self.known_users = 0, 0.0

    @property
    def users(self) -> Packed:
        return self._users

    @property
    def counts(self) -> Counts:
        return self._users.counts

    @property
    def by_user(self) -> tuple[str, ...]:
        return tuple(flatten(self._users, "users."))

    def round(self) -> PopulationRound:
        """What compiled rounds play on; the arrays are this learner's own."""
        rows = len(self.counts)
        return PopulationRound(
            users=self._users,
            row_of=np.arange(rows),
            server_of=np.zeros(rows, dtype=np.int64),
            first=np.array([0, rows]),
            start=self.start,
            released=self.released,
            odds=self.odds,
            visits=self.visits,
            due=self.asked,
            exploration=self.exploration,
            centre=self.centre,
        )

    def use(self, users: Packed) -> None:
        """Somebody else keeps the users; these are all of them now."""
        self._users = self._room = users

    def add_user(self) -> int:
        self._users, self._room = with_row(self._users, self._room)
        return len(self.counts) - 1

    def bound(self, row: int, left: Packed | None = None) -> Bound:
        """From all that the user said, or from what is `left` of it."""
        d, users = self.model.dim, self._users if left is None else left
        theta, inverse = np.empty(d), np.empty((d, d))
        own = users.gram[row], users.moment[row]
        serve(self.start, self.released, float(self.odds[0]), *own, theta, inverse)
        return Bound(theta, inverse, self.exploration, self.centre, 1.0 - self.centre)

    def observe(self, row: int, x: Vector, y: float) -> None:
        feedback(self.round(), row, x, y)

    def count_visit(self) -> None:
        """An observation that somebody else has kept."""
        count_visit(self.round(), 0)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        squares = np.zeros(len(self.counts))
        replace_reward(self._users, squares, row, x, old - self.centre, new - self.centre)

    def forget(self, row: int) -> None:
        self._users.clear(row)

    def contribute(self, job: Job) -> Callable[[], None] | None:
        """Whole numbers at the point that the job gives, with the clip norm that it asks for.

        A server without users takes as many steps as one with a few.
        """
        rows, began = job.take(), "sums" in job.total
        if rows.start == rows.stop and began:
            return None
        if not began:
            job.total["sums"] = np.zeros(release_length(self.model.dim), dtype=np.int64)
        own, total = Packed._make(array[rows].copy() for array in self._users), job.total["sums"]
        point = PublicPoint(job.given["root"], job.given["mean"], VARIANCE)
        most, steps, count = float(job.ask["most"]), int(job.ask["steps"]), int(job.ask["count"])

        def add() -> None:
            add_contributions(point, own, most, steps, count, total)

        return add

    def absorb(self, news: PopulationNews) -> None:
        """Believe the released population as far as evidence supports it."""
        self._take(Population(news.mean, news.covariance))
        self.servers, self.known_users, self.odds[0] = news.servers, news.users, PRIOR_ODDS
        if self.pooled:
            ask_users(self.round(), 0)

    def _take(self, population: Population) -> None:
        self.population, self.released = population, prior_of(self.model, population)
        self.known = part_known(population.covariance, np.eye(self.model.dim))

    def labels(self) -> Indices:
        return np.zeros(len(self.counts), dtype=np.int64)

    def theta(self, left: Packed | None = None) -> Floats:
        """Estimates of rewards as they are; what was learned from are centred ones."""
        theta = np.zeros((len(self.counts), self.model.dim))
        for row in range(len(theta)):
            theta[row] = self.bound(row, left).theta
        if self.domain.constant is not None:
            theta[:, -1] += self.centre / self.domain.constant
        return theta

    def overview(self) -> list[LocalOverview]:
        """Everybody, if there is anybody: there are no types."""
        if not len(self.counts):
            return []
        everybody = LocalOverview(
            users=len(self.counts),
            own=int(self.counts.sum()),
            others=0,
            shared_by=self.servers + 1,
            known=self.known,
        )
        return [everybody]

    def state(self) -> State:
        arrays = flatten(self._users, "users.") | flatten(self.population, "population.")
        values = {
            "odds": float(self.odds[0]),
            "visits": int(self.visits[0]),
            "asked": int(self.asked[0]),
            "servers": self.servers,
        }
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        if len(arrays["users.counts"]) == len(self.counts):
            for name, array in flatten(self._users, "users.").items():
                array[...] = arrays[name]
        else:
            self._users, self._room = with_room(rebuild(self._users, arrays, "users."))
        self._take(rebuild(self.population, arrays, "population."))
        self.odds[0], self.visits[0] = values["odds"], values["visits"]
        self.asked[0], self.servers = values["asked"], values["servers"]
