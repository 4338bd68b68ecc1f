"""A learner: what a server knows of its users and how it serves them. It never sees a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol, TypeVar

from fclub.core.offers import Scoring
from fclub.core.packing import inside, under
from fclub.core.statistics import Packed, Statistics
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.protocol.interfaces.overview import LocalOverview

FORGET, REPLACE, ANYTIME = "forget", "replace", "anytime"
"""Capabilities: one user's data can be taken out; one reward can take the place of another; it can
whatever was sent since, because all data are added up anew each time and no promise is about one."""

PART = 2048
"""Users who are added up at a time beside serving: a few hundredths of a second of another thread."""

Arrays = dict[str, Any]
"""Arrays by name."""

State = tuple[Arrays, dict[str, Any]]
"""Arrays and JSON-ready values: what `state` gives and `restore` takes."""


class Bound(NamedTuple):
    """The score of an item is `offset` + min(xᵀ`theta` + `radius`·√(xᵀ`inverse`x), `most`)."""

    theta: Vector
    inverse: Matrix
    radius: float
    offset: float = 0.0
    most: float = inf

    @property
    def scoring(self) -> Scoring:
        """What ranks items; the offset is the same for all."""
        return self.theta, self.inverse, self.radius, self.most

    def copy(self) -> Bound:
        """The same, which nothing changes any more."""
        return self._replace(theta=self.theta.copy(), inverse=self.inverse.copy())


@dataclass
class Job:
    """Work over the users of a server that is done beside serving, a few rows at a time.

    It takes the place of an open one of the same `kind`. Rows below `following` are in `total`, or
    will be once the part that was taken last is computed.
    Users who come after it was begun, in rows from `rows` on, are not in it. `ask` says what it is for
    (JSON-ready), and `given` are the arrays that contributions are computed at, such as released
    values. `total` holds what the learner has added up so far and, in the end, its contribution. What
    is not computed `beside` serving may be computed on the learner's own arrays, all at once.
    """

    kind: str
    rows: int
    ask: dict[str, Any] = field(default_factory=dict)
    given: Arrays = field(default_factory=dict)
    total: Arrays = field(default_factory=dict)
    following: int = 0
    beside: bool = True

    def take(self) -> slice:
        """The next rows; an empty slice once everybody is in."""
        start, most = self.following, PART if self.beside else self.rows
        self.following = min(start + most, self.rows)
        return slice(start, self.following)

    def start_again(self) -> None:
        """Somebody who may be in it is forgotten."""
        self.total, self.following = {}, 0

    def state(self) -> State:
        """A part that was taken must have been computed before."""
        arrays = under("given.", self.given) | under("total.", self.total)
        rest = {
            "kind": self.kind,
            "rows": self.rows,
            "following": self.following,
            "beside": self.beside,
        }
        return arrays, {"ask": self.ask, **rest}

    @staticmethod
    def restored(arrays: Arrays, values: dict[str, Any]) -> Job:
        return Job(given=inside("given.", arrays), total=inside("total.", arrays), **values)


News = TypeVar("News", contravariant=True)
"""What comes back from other servers, as its exchange gives it to a learner."""


class Study(Protocol):
    """What its learner learns from own users at home, in phases, as jobs of this `kind`."""

    kind: str

    @property
    def learner(self) -> Learner[Any]: ...

    def due(self) -> Callable[[], Job | None] | None:
        """Live: begins the phase that the server's own visits call for."""

    def call(self) -> Job | None:
        """Simulation: the clock of all servers calls for a phase."""

    def finish(self, job: Job) -> Job | None:
        """Everybody is in this job: let the learner learn from it, and go on with the next."""

    def state(self) -> State: ...

    def restore(self, arrays: Arrays, values: dict[str, Any]) -> None: ...


class Serving(Protocol):
    """Serves its users, known by their rows, from what it learns of them.

    It draws no noise and keeps no ledger. What is missing in `supports` it is not asked for.
    """

    @property
    def supports(self) -> frozenset[str]: ...

    @property
    def counts(self) -> Counts:
        """Observations by user."""

    @property
    def users(self) -> Packed:
        """Raw statistics by user; a simulation may keep none of these rows."""

    @property
    def by_user(self) -> tuple[str, ...]:
        """Arrays of `state` with a row for every user that changes only when that user does."""

    def add_user(self) -> int:
        """Add a new user; returns its row."""

    def bound(self, row: int) -> Bound:
        """What items are scored with for this user, until the next call of any method."""

    def observe(self, row: int, x: Vector, y: float) -> None:
        """This user rewarded the item with features x."""

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """Another reward takes the place of one that was learned."""

    def forget(self, row: int) -> None:
        """Remove what is known of this user; the row stays, empty, and is not used again."""

    def labels(self) -> Indices:
        """By user: its cluster, as an index of `overview`."""

    def theta(self) -> Floats:
        """By user: the estimate that it is served from."""

    def overview(self) -> list[LocalOverview]:
        """Its clusters; the exchange adds what other servers know of them."""

    def state(self) -> State: ...

    def restore(self, arrays: Arrays, values: dict[str, Any]) -> None: ...


class Learner(Serving, Protocol[News]):
    """Contributes to what an exchange or a study asks for, and learns from the news that they give."""

    def contribute(self, job: Job) -> Callable[[], None] | None:
        """Take the next rows of a job: a copy of what they need, as they are now.

        What is returned adds them to `job.total`, if need be in another thread while users are served;
        it is called before the next rows are taken. None once everybody is in: then `job.total` is the
        contribution, in the form that the exchange expects.
        """

    def absorb(self, news: News) -> None:
        """Learn from what has come back."""


class Noised(NamedTuple):
    """Statistics that have been released, with noise of this variance in every entry."""

    statistics: Statistics
    noise: float = 0.0


class StreamNews(NamedTuple):
    """What this server has released itself, and what so many others have released together."""

    own: Noised
    others: Noised
    servers: int


class SumNews(NamedTuple):
    """The exact contributions of so many other servers, added up, in the form of one contribution."""

    sums: Vector
    servers: int


class PopulationNews(NamedTuple):
    """Mean and covariance of tastes that so many other servers have released, in public units.

    They are known as well as from the exact tastes of so many `users`.
    """

    mean: Vector
    covariance: Matrix
    servers: int
    users: float
