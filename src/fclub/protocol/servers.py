"""The two kinds of servers, whatever they learn and exchange."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from fclub.core.kernels import choose
from fclub.core.packing import inside, under
from fclub.core.statistics import Statistics
from fclub.core.types import Counts, Indices, Matrix, Vector
from fclub.errors import CannotForget, CannotReplace
from fclub.protocol.interfaces.exchange import (
    Begin,
    Beginning,
    GlobalExchange,
    LocalExchange,
    Moment,
    Status,
)
from fclub.protocol.interfaces.learner import (
    ANYTIME,
    FORGET,
    REPLACE,
    Bound,
    Job,
    Serving,
    State,
    Study,
)
from fclub.protocol.interfaces.overview import GlobalOverview, LocalOverview
from fclub.protocol.messages import Message, PhaseStart


class LocalServer:
    """Serves users, known by their rows, from what its learner knows; its exchange does the rest.

    With `in_parts` jobs wait for `part`, beside serving; otherwise they are done where they begin,
    which gives the same bits if nothing happens between the parts. Where the learner has a `study` of
    its own users, that is a job beside those of the exchange.
    """

    in_parts = False

    def __init__(self, learner: Serving, exchange: LocalExchange, study: Study | None = None) -> None:
        self.learner, self.exchange, self.study = learner, exchange, study
        self.jobs: list[Job] = []

    def add_user(self) -> int:
        row = self.learner.add_user()
        self._work(self.exchange.visited(row))
        return row

    def recommend(self, row: int, items: Matrix) -> int:
        return choose(items, *self.learner.bound(row).scoring)

    def observe(self, row: int, x: Vector, y: float, *, releasable: bool = True) -> None:
        """What an older copy of this server may have released is not `releasable`."""
        before = None if releasable else self.stored(row)
        self.learner.observe(row, x, y)
        if before is not None:
            self.exchange.withhold(row, self.stored(row) - before)
        self._work(self.exchange.visited(row))

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        if REPLACE not in self.learner.supports & self.exchange.supports:
            raise CannotReplace("this policy adds rewards up and cannot take one back")
        leaving = self.status().unsent or not all(map(self._is_study, self.jobs))
        if self.final_once_sent and leaving:
            raise CannotReplace(
                "this reward may be in what is added up or released, and about to be sent"
            )
        self.learner.replace(row, x, old, new)

    @property
    def final_once_sent(self) -> bool:
        return ANYTIME not in self.exchange.supports

    def forget(self, row: int) -> int:
        if FORGET not in self.learner.supports & self.exchange.supports:
            raise CannotForget("this policy adds users up and cannot take one out again")
        released = self.exchange.forget(row)
        self.learner.forget(row)
        for job in self.jobs:
            job.start_again()
        return released

    def stored(self, row: int) -> Statistics:
        return Statistics.of(self.learner.users, row).copy()

    def bound(self, row: int) -> Bound:
        return self.learner.bound(row).copy()

    def pause(self) -> None:
        self.exchange.paused = True

    def go_on(self) -> None:
        self.exchange.paused = False
        self._work(self.exchange.resume())

    def begin(self, beginning: Beginning) -> None:
        """What was being added up for an earlier session is void; a study is nobody else's business."""
        self.jobs = [job for job in self.jobs if self._is_study(job)]
        self._work(self.exchange.start_session(beginning))

    def receive(self, message: Message) -> None:
        self._work(self.exchange.receive(message))
        if isinstance(message, PhaseStart) and self.study is not None:
            self._work(self.study.call())

    def due(self, moment: Moment | None = None) -> Callable[[], None] | None:
        """What the exchange has to do, then the study, of which one phase is open at most."""
        found = [self.exchange.due(moment)]
        if self.study is not None and moment is None and not any(map(self._is_study, self.jobs)):
            found.append(self.study.due())
        begins = [begin for begin in found if begin is not None]
        return partial(_begin_all, self._work, begins) if begins else None

    def _work(self, job: Job | None) -> None:
        """Do a job and all that follow from it, or leave it to `part`, where a study comes last.

        So what the exchange sends never waits for what only this server's own users' data call for.
        """
        while job is not None:
            if self.in_parts:
                others = [one for one in self.jobs if one.kind != job.kind]
                self.jobs = sorted([*others, job], key=self._is_study)
                return
            job.beside, side = False, self._side_of(job)
            while (add := side.learner.contribute(job)) is not None:
                add()
            job = side.finish(job)

    def _side_of(self, job: Job) -> LocalExchange | Study:
        """Whose job it is."""
        study = self.study
        return study if study is not None and job.kind == study.kind else self.exchange

    def _is_study(self, job: Job) -> bool:
        return self._side_of(job) is self.study

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def part(self) -> Callable[[], None]:
        """The next rows of the first job, or its end."""
        side = self._side_of(self.jobs[0])
        add = side.learner.contribute(self.jobs[0])
        if add is None:
            self._work(side.finish(self.jobs.pop(0)))
        return add or nothing

    @property
    def by_user(self) -> tuple[str, ...]:
        own = tuple(under("learner.", dict.fromkeys(self.learner.by_user)))
        return own + tuple(under("exchange.", dict.fromkeys(self.exchange.by_user)))

    @property
    def counts(self) -> Counts:
        return self.learner.counts

    @property
    def cluster_of_user(self) -> Indices:
        """As an index of `overview`."""
        return self.learner.labels()

    def status(self) -> Status:
        return self.exchange.status()

    def overview(self) -> list[LocalOverview]:
        return self.exchange.describe(self.learner.overview())

    def state(self) -> State:
        study = {} if self.study is None else {"study": self.study.state()}
        parts = {"learner": self.learner.state(), "exchange": self.exchange.state()}
        arrays, values = _joined(**parts, **study)
        jobs = _joined(**{f"job{number}": job.state() for number, job in enumerate(self.jobs)})
        return arrays | jobs[0], values | {"jobs": list(jobs[1].values())}

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.learner.restore(inside("learner.", arrays), values["learner"])
        self.exchange.restore(inside("exchange.", arrays), values["exchange"])
        if self.study is not None:
            self.study.restore(inside("study.", arrays), values["study"])
        self.jobs = [
            Job.restored(inside(f"job{number}.", arrays), job)
            for number, job in enumerate(values["jobs"])
        ]


def _begin_all(work: Callable[[Job | None], None], begins: list[Begin]) -> None:
    for begin in begins:
        work(begin())


def nothing() -> None:
    """A part of work that was done when it was taken."""


def _joined(**states: State) -> State:
    """Several states as one: names get a prefix."""
    arrays: dict[str, Any] = {}
    for name, (own, _) in states.items():
        arrays |= under(f"{name}.", own)
    return arrays, {name: values for name, (_, values) in states.items()}


class GlobalServer:
    """Knows local servers by what they have released, in an exchange."""

    def __init__(self, exchange: GlobalExchange) -> None:
        self.exchange = exchange

    @property
    def servers(self) -> list[int]:
        return self.exchange.servers

    @property
    def gathers(self) -> bool:
        return self.exchange.gathers

    @gathers.setter
    def gathers(self, gathers: bool) -> None:
        self.exchange.gathers = gathers

    @property
    def phase(self) -> int:
        return self.exchange.status().phase

    @property
    def next_phase(self) -> int | None:
        return self.exchange.status().next_phase

    @property
    def missing(self) -> Collection[int]:
        return self.exchange.status().missing

    @property
    def reported(self) -> int:
        return self.exchange.status().reported

    def released_by(self, server: int) -> int:
        return self.exchange.account(server).released

    def paid_by(self, server: int) -> float:
        return self.exchange.account(server).paid

    def used_by(self, server: int) -> int:
        return self.exchange.account(server).used

    def begin_phase(self, phase: int) -> None:
        self.exchange.begin_phase(phase)

    def invite(self, servers: int) -> None:
        self.exchange.invite(servers)

    def advance(self, overdue: bool = False) -> None:
        self.exchange.advance(overdue)

    def due(self, now: float) -> Callable[[], None] | None:
        return self.exchange.due(now)

    def begin(self, server: int, beginning: Beginning) -> None:
        self.exchange.start_session(server, beginning)

    def receive(self, server: int, message: Message) -> None:
        self.exchange.receive(server, message)

    def overview(self) -> list[GlobalOverview]:
        return self.exchange.overview()

    def state(self) -> State:
        return self.exchange.state()

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.exchange.restore(arrays, values)
