"""All users of a server as one: a single Gaussian serves everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fclub.core.lattice import on_grid, snap
from fclub.core.noisy import Noise, noisy_information
from fclub.core.packing import flatten, rebuild, with_row
from fclub.core.plus.type_rounds import keep
from fclub.core.pooled import Gaussians, Visitors, learn
from fclub.core.statistics import Packed, Statistics, pack_statistics, replace_reward, unpack_statistics
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.privacy.sensitivity import CENTRE, Domain, variances_by_entry
from fclub.protocol.interfaces.learner import (
    FORGET,
    REPLACE,
    Bound,
    Job,
    Noised,
    State,
    StreamNews,
)
from fclub.protocol.interfaces.overview import LocalOverview, part_known


@dataclass(frozen=True)
class PooledRules:
    """Prior precision of the one vector and variance of a reward.

    `released_only` serves users from released data only. Released statistics carry noise of variance at
    least `least_noise`, and at most `most_noise` for each of their observations.
    """

    prior: Matrix
    variance: float
    released_only: bool
    least_noise: float
    most_noise: float

    @property
    def dim(self) -> int:
        return len(self.prior)


class Apart(NamedTuple):
    """What is kept of each user, so that one can be forgotten: statistics, and squared rewards."""

    users: Packed
    squares: Floats


class Pooled:
    """One Gaussian in `model`, from own observations and from what other servers have released.

    It contributes the statistics of all of its users together, as the one row of a `Packed`. A live
    one also keeps users `apart`; in a simulation nobody is forgotten, and only visits are counted.
    """

    supports = frozenset({FORGET, REPLACE})
    by_user: tuple[str, ...] = ()

    def __init__(
        self, visitors: Visitors, model: Gaussians, rules: PooledRules, domain: Domain, live: bool
    ) -> None:
        self.visitors = self._room = visitors
        self.model, self.rules, self.domain, self.live = model, rules, domain, live
        rows, nothing = len(visitors.counts) if live else 0, Noised(Statistics.zeros(rules.dim))
        self.apart = self._apart_room = Apart(Packed.zeros(rows, rules.dim), np.zeros(rows))
        self.news = StreamNews(own=nothing, others=nothing, servers=0)
        self._refresh()

    @property
    def counts(self) -> Counts:
        return self.visitors.counts

    @property
    def users(self) -> Packed:
        return self.apart.users

    def add_user(self) -> int:
        self.visitors, self._room = with_row(self.visitors, self._room)
        if self.live:
            self.apart, self._apart_room = with_row(self.apart, self._apart_room)
        return len(self.counts) - 1

    def bound(self, row: int) -> Bound:
        model = self.model
        scoring = model.theta[0], model.covariance[0], model.exploration
        return Bound(*scoring, offset=model.centre, most=1.0 - model.centre)

    def observe(self, row: int, x: Vector, y: float) -> None:
        self.domain.check(x, y - self.model.centre)
        self.counts[row] += 1
        if self.live:
            rounded = snap(x, self.model.constant), on_grid(y - self.model.centre)
            keep(self.users, self.apart.squares, row, *rounded)
        learn(self.model, 0, x, y)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        model = self.model
        x = snap(x, model.constant)
        rewards = on_grid(old - model.centre), on_grid(new - model.centre)
        replace_reward(self.users, self.apart.squares, row, x, *rewards)
        replace_reward(model.users, model.squares, 0, x, *rewards)
        self._refresh()

    def forget(self, row: int) -> None:
        for total, own in zip(self.model.users, self.users, strict=True):
            total[0] -= own[row]
        self.model.squares[0] -= self.apart.squares[row]
        self.users.clear(row)
        self.apart.squares[row], self.counts[row] = 0.0, 0
        self._refresh()

    def contribute(self, job: Job) -> None:
        """The sums are there already."""
        job.total = self.model.users._asdict()

    def absorb(self, news: StreamNews) -> None:
        self.news = news
        self._refresh()

    def _refresh(self) -> None:
        """Compute the Gaussian anew from all that is known."""
        own = Noised(Statistics.of(self.model.users, 0))
        known = self.news.others, self.news.own if self.rules.released_only else own
        precision, vector = self.rules.prior.copy(), np.zeros(self.rules.dim)
        noise = Noise(variances_by_entry(self.domain, self.rules.dim), 1.0 / np.diag(self.rules.prior))
        for statistics, stated in known:
            released = statistics.gram, statistics.moment, stated
            Q, q = noisy_information(*released, self.rules.variance, noise)
            precision, vector = precision + Q, vector + q
        self.model.covariance[0] = np.linalg.inv(precision)
        self.model.vector[0] = vector
        self.model.theta[0] = self.model.covariance[0] @ vector

    def labels(self) -> Indices:
        return np.zeros(len(self.counts), dtype=np.int64)

    def theta(self) -> Floats:
        """Estimates of rewards as they are; what was learned from are centred ones."""
        theta = np.tile(self.model.theta[0], (len(self.counts), 1))
        if self.domain.constant is not None:
            theta[:, -1] += CENTRE / self.domain.constant
        return theta

    def overview(self) -> list[LocalOverview]:
        """Everybody, if there is anybody."""
        if not len(self.counts):
            return []
        everybody = LocalOverview(
            users=len(self.counts),
            own=int(self.model.users.counts[0]),
            others=self.news.others.statistics.count,
            shared_by=self.news.servers + 1,
            known=part_known(self.model.covariance[0], np.linalg.inv(self.rules.prior)),
        )
        return [everybody]

    def state(self) -> State:
        heard = self.news.own, self.news.others
        arrays = flatten(self.model, "model.") | flatten(self.apart, "apart.") | {"visits": self.counts}
        arrays |= pack_statistics([one.statistics for one in heard], self.rules.dim, "heard.")
        return arrays, {"noise": [one.noise for one in heard], "servers": self.news.servers}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        if len(self.counts) != len(arrays["visits"]):
            self.visitors = self._room = Visitors(np.zeros_like(arrays["visits"]))
        self.counts[:] = arrays["visits"]
        self.apart = self._apart_room = rebuild(self.apart, arrays, "apart.")
        for name, array in flatten(self.model, "model.").items():
            array[...] = arrays[name]
        own, others = map(Noised, unpack_statistics(arrays, "heard."), values["noise"])
        self.news = StreamNews(own, others, values["servers"])
