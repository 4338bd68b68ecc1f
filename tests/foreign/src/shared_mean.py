"""A learner of another package: every user is pulled towards one vector that all servers learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from fclub.core.packing import flatten, with_row
from fclub.core.statistics import Packed, observe
from fclub.core.types import Counts, Floats, Indices, Vector
from fclub.parameters import meaning
from fclub.protocol.interfaces.family import Shape
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Bound, Job, State, SumNews
from fclub.protocol.interfaces.overview import LocalOverview
from fclub.protocol.rows.exact import ExactRow


class MeanLearner:
    """Ridge regression for each user around the ridge regression of everybody, of all servers."""

    supports = frozenset({FORGET, REPLACE})
    by_user = ("gram", "moment", "counts")

    def __init__(self, users: Packed, ridge: float, exploration: float) -> None:
        self.users, self._room = users, users
        self.ridge, self.exploration = ridge, exploration
        self.news = SumNews(np.zeros_like(self._sums(slice(None))), 0)

    @property
    def counts(self) -> Counts:
        return self.users.counts

    def _sums(self, rows: slice) -> Vector:
        """Gram and moment of these users, in one vector."""
        gram, moment = self.users.gram[rows].sum(0), self.users.moment[rows].sum(0)
        return np.concatenate([gram.ravel(), moment])

    def _shared(self) -> Vector:
        """What is released of others, and what is known here."""
        d = self.users.moment.shape[1]
        total = self.news.sums + self._sums(slice(None))
        shared: Any = np.linalg.solve(total[: d * d].reshape(d, d) + np.eye(d), total[d * d :])
        return shared

    def add_user(self) -> int:
        self.users, self._room = with_row(self.users, self._room)
        return len(self.counts) - 1

    def bound(self, row: int) -> Bound:
        own, shared = self.users, self._shared()
        inverse = np.linalg.inv(own.gram[row] + self.ridge * np.eye(len(shared)))
        return Bound(inverse @ (own.moment[row] + self.ridge * shared), inverse, self.exploration)

    def observe(self, row: int, x: Vector, y: float) -> None:
        observe(self.users, row, x, y)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        self.users.moment[row] += (new - old) * x

    def forget(self, row: int) -> None:
        self.users.clear(row)

    def contribute(self, job: Job) -> Callable[[], None] | None:
        rows = job.take()
        if rows.start == rows.stop:
            job.total.setdefault("sums", np.zeros_like(self.news.sums))
            return None
        part = self._sums(rows)

        def add() -> None:
            job.total["sums"] = job.total.get("sums", 0.0) + part

        return add

    def absorb(self, news: SumNews) -> None:
        self.news = news

    def labels(self) -> Indices:
        return np.arange(len(self.counts))

    def theta(self) -> Floats:
        return np.array([self.bound(row).theta for row in self.labels()])

    def overview(self) -> list[LocalOverview]:
        return [LocalOverview(1, int(n), 0, self.news.servers + 1) for n in self.counts]

    def state(self) -> State:
        return flatten(self.users) | {"sums": self.news.sums}, {"servers": self.news.servers}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        while len(self.counts) < len(arrays["counts"]):
            self.add_user()
        for name, array in flatten(self.users).items():
            array[...] = arrays[name]
        self.news = SumNews(arrays["sums"], values["servers"])


class SharedMean(ExactRow):
    """Every user is pulled towards what all users have in common."""

    name = "shared-mean"

    ridge: Annotated[float, meaning("weight of what all users have in common", above=0)] = 2.0
    exploration: Annotated[float, meaning("multiple of a score's deviation", least=0)] = 0.2

    def make_learner(self, shape: Shape, users: Packed) -> MeanLearner:
        return MeanLearner(users, self.ridge, self.exploration)

    def contribution(self, shape: Shape) -> int:
        return shape.dim * (shape.dim + 1)
