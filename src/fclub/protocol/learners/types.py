"""Users served from types, which are as many as the data of all servers call for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fclub.core.lattice import on_grid, snap
from fclub.core.noisy import Noise, all_information
from fclub.core.packing import flatten, rebuild
from fclub.core.plus.beliefs import (
    Beliefs,
    PopulationPrior,
    TypeRules,
    first_beliefs,
    move_population,
    tell_beliefs,
)
from fclub.core.plus.packed_sums import read_splits, write_splits
from fclub.core.plus.split_sums import SplitSums, sum_splits
from fclub.core.plus.splits import (
    Halves,
    half_columns,
    start_halves,
    step,
    write_variational,
)
from fclub.core.plus.type_model import TypeModel
from fclub.core.plus.type_rounds import know_user, means_by_types
from fclub.core.plus.type_sums import RESIDUAL, VISITS, Known, TypeSums, inform, know_users
from fclub.core.statistics import Packed
from fclub.core.types import Counts, Floats, Indices, Vector
from fclub.privacy.sensitivity import CENTRE, Domain, variances_by_entry
from fclub.protocol.interfaces.learner import FORGET, REPLACE, Bound, Job, Noised, State
from fclub.protocol.interfaces.overview import TYPE, LocalOverview, part_known
from fclub.protocol.learners.people import Crowd, People
from fclub.protocol.learners.splitter import Grouping

STEPS = 3
"""How often users are added up in a phase; each time the types of all servers move."""

FIRST_PHASE = 0.1
"""Visits, as a mean over the users of a server, before which there is little to learn of types."""

OFTEN = 4.0
"""Visits, as a mean over users, from which on a server takes part in every phase of a simulation.

A phase looks at all users. Before, those that share take part in every second one: together, for types
are split and merged by the sums of all."""

GROWTH = 1.2
"""How much the observations of a server that does not share have to grow before that."""

ADDING = "types"
"""The kind of job that adds users up by type."""


class RoundNews(NamedTuple):
    """Types from now on, and what users add up to by them: this server's, and those of all others.

    New halves of the types at the places in `fresh` begin at these centres. After the `last` sums of a
    phase the population moves, too. `servers` is how many others there are.
    """

    grouping: Grouping
    own: SplitSums
    others: SplitSums
    fresh: dict[int, Floats]
    servers: int
    last: bool


class UserNews(NamedTuple):
    """What so many other servers have released of each of their users."""

    users: Sequence[Noised]
    servers: int


class Guests:
    """Users of other servers, known by what was released of them.

    Each is one more user of the types, who says less: noise is part of its likelihood.
    """

    def __init__(self, domain: Domain, dim: int) -> None:
        self.domain, self.users = domain, list[Noised]()
        self._known: Known | None = None
        self._sums = TypeSums.zeros(1, dim)

    def know(self, users: Sequence[Noised]) -> None:
        self.users = list(users)
        self.look_again()

    def look_again(self) -> None:
        """What they say depends on the population and on the variance of rewards, which have moved."""
        self._known = None

    def sums(self, types: Types) -> SplitSums | None:
        """What they add up to by the types that this server believes in, if there are any."""
        if not self.users:
            return None
        if self._known is None:
            self._known = self._know(types)
        found = SplitSums.zeros(len(types.grouping.ids), types.rules.dim)
        for new, old in zip(found.sums[3:], self._sums[3:], strict=True):
            new[...] = old
        types.adder(found)(self._known, np.zeros(len(self.users), dtype=np.int64))
        inform(types.learned, found.sums)
        tell_beliefs(types.beliefs, found.sums)
        return found

    def _know(self, types: Types) -> Known:
        """By exact statistics that would say as much of each of them.

        With the information Q, q about θ these are vQ and vq, v being the variance of a reward. Rewards
        that are not known one by one say nothing of their variance.
        """
        d, beliefs, model = types.rules.dim, types.beliefs, types.learned
        sizes = beliefs.mean**2 + np.diag(beliefs.covariance)
        released = [(known.gram, known.moment, noise) for known, noise in self.users]
        variance = float(model.variance[0])
        Q, q = all_information(released, variance, Noise(variances_by_entry(self.domain, d), sizes))
        counts = np.array([known.count for known, _ in self.users], dtype=np.int64)
        users, everybody = Packed(variance * Q, variance * q, counts), np.arange(len(counts))
        self._sums = TypeSums.zeros(1, d)
        found = know_users(model, users, np.zeros(len(counts)), everybody, self._sums)
        self._sums.scalars[[RESIDUAL, VISITS]] = 0.0
        return found


class Types:
    """Learns in phases how many types there are, and what they are; serves each user by its own data.

    The first type has everybody. In a phase users are added up STEPS times, shared out between types,
    and those of a type between its two halves; each time types move by the sums of all servers, and
    where these say so one is split, or two become one (`Splitter`). Types keep their ids: of those that
    one is split into, one keeps it. The population, the spread within types and the variance of rewards
    move at the end of a phase.

    Users may be a slice of a federation's arrays, into which others write; a `live` learner has counted
    itself. Where observations fade (`kept` < 1) users are served from what is left of them, and sums
    are made of all nevertheless. With `grid` observations are rounded to the lattice.
    """

    supports = frozenset({FORGET, REPLACE})

    def __init__(
        self,
        crowd: Crowd,
        rules: TypeRules,
        exploration: float,
        domain: Domain,
        *,
        live: bool = False,
        kept: float = 1.0,
        grid: bool = False,
    ) -> None:
        self.people = People(crowd, rules.types, kept)
        self.rules, self.exploration, self.domain = rules, exploration, domain
        self.live, self.grid = live, grid
        self.centre = CENTRE if domain.constant is not None else 0.0
        self.prior = PopulationPrior.of(rules)
        self.grouping = Grouping(0, (0,), (0,))
        self.halves, self.paying = Halves.none(1, rules.dim), np.ones(1)
        self.splits, self.others = SplitSums.zeros(1, rules.dim), SplitSums.zeros(1, rules.dim)
        self.guests, self.sharing = Guests(domain, rules.dim), 0
        self._known: tuple[Known, TypeSums] | None = None
        self._believe(first_beliefs(rules))

    def _believe(self, beliefs: Beliefs) -> None:
        """Serve from these."""
        self.beliefs = beliefs
        shape = 1, len(self.paying), self.rules.dim
        self.model = self.learned = TypeModel.zeros(*shape)
        write_variational(beliefs, self.model, self.paying)
        if not self.paying.all():
            self.learned = TypeModel.zeros(*shape)
            write_variational(beliefs, self.learned, np.ones(len(self.paying)))

    @property
    def users(self) -> Packed:
        return self.people.users

    @property
    def counts(self) -> Counts:
        return self.people.counts

    @property
    def by_user(self) -> tuple[str, ...]:
        return self.people.by_user

    @property
    def observations(self) -> int:
        return self.people.seen if self.live else int(self.counts.sum())

    @property
    def has_begun(self) -> bool:
        """Are there enough visits to learn types from? Fewer than features say too little."""
        return self.observations >= max(1.0, FIRST_PHASE * len(self.counts), self.rules.dim)

    def takes_part(self, phase: int | None = None) -> bool:
        """In a simulation: is there enough to learn from, and is this a phase for who shares?"""
        seen, before = self.observations, self.splits.sums.scalars[VISITS]
        due = seen >= GROWTH * before if phase is None else phase % 2 == 0
        return self.has_begun and bool(due or seen >= OFTEN * len(self.counts))

    def add_user(self) -> int:
        """A user of whom nothing is known is served by what is known of all."""
        return self.people.add(self.grouping.ids[int(np.argmax(self.beliefs.users))])

    def bound(self, row: int) -> Bound:
        mean, covariance = np.empty(self.rules.dim), np.empty((self.rules.dim, self.rules.dim))
        know_user(self.model, 0, self.people.serving, row, mean, covariance)
        return Bound(mean, covariance, self.exploration, self.centre, 1.0 - self.centre)

    def observe(self, row: int, x: Vector, y: float) -> None:
        y -= self.centre
        if self.grid:
            self.domain.check(x, y)
            x, y = snap(x, self.domain.constant or 0.0), on_grid(y)
        self.people.observe(row, x, y)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """What users' data say is worked out anew in the next phase; what is being added up stays."""
        old, new = old - self.centre, new - self.centre
        if self.grid:
            x, old, new = snap(x, self.domain.constant or 0.0), on_grid(old), on_grid(new)
        self.people.replace(row, x, old, new)
        self._known = None

    def forget(self, row: int) -> None:
        """The next sums do without this user; types have moved by earlier ones, and stay there."""
        self.people.forget(row, self.grouping.ids[int(np.argmax(self.beliefs.users))])
        self._known = None

    def contribute(self, job: Job) -> Callable[[], None] | None:
        """Add users to the types that are believed in now; in the end note what was believed."""
        if job.kind != ADDING:
            return None
        if "labels" in job.total:
            self.people.label(int(job.total.pop("first")), job.total.pop("labels"))
        sums, total = SplitSums.zeros(len(self.grouping.ids), self.rules.dim), job.total
        if total:
            sums = rebuild(sums, total)
        else:
            total |= flatten(sums)
        rows = job.take()
        if rows.start == rows.stop:
            inform(self.model, sums.sums)
            tell_beliefs(self.beliefs, sums.sums)
            self.splits = sums
            return None
        labels, add_up = self.people.labels[rows].astype(np.int64), self.adder(sums)
        know = self._knower(rows) if job.beside else self._know_all

        def add() -> None:
            add_up(know(sums.sums), labels)
            total["first"], total["labels"] = np.array(rows.start), labels

        return add

    def adder(self, sums: SplitSums) -> Callable[[Known, Indices], None]:
        """Adds users to these sums by the types that are believed in now, and notes their labels."""
        beliefs, model, ids = self.beliefs, self.learned, np.array(self.grouping.ids)
        told = beliefs.centres, beliefs.within, beliefs.own, half_columns(self.halves)
        return lambda known, labels: sum_splits(model, known, *told, ids, labels, sums)

    def _knower(self, rows: slice) -> Callable[[TypeSums], Known]:
        """What the data of these users say, as they are now; adds what concerns the population."""
        model, crowd = self.model, self.people.crowd.copy(rows.start, rows.stop)
        people = np.flatnonzero(crowd.users.counts > 0)
        return lambda sums: know_users(model, crowd.users, crowd.squares, people, sums)

    def _know_all(self, sums: TypeSums) -> Known:
        """The same of everybody: it does not change within a phase unless there are new data."""
        if self._known is None or self._known[1].scalars[VISITS] != self.observations:
            crowd, people = self.people.crowd, np.flatnonzero(self.counts > 0)
            known = know_users(self.model, crowd.users, crowd.squares, people, sums)
            self._known = known, TypeSums(*(array.copy() for array in sums))
        known, population = self._known
        for new, old in zip(sums[3:], population[3:], strict=True):
            new[...] = old
        return known

    def absorb(self, news: RoundNews | UserNews) -> None:
        """Move types by the sums of all servers; what was released of users counts in the next step."""
        self.sharing = news.servers
        if isinstance(news, UserNews):
            self.guests.know(news.users)
            return
        self.splits, self.others, ids = news.own, news.others, news.grouping.ids
        if ids != self.grouping.ids:
            gone, total = np.setdiff1d(self.grouping.ids, ids), news.own.plus(news.others)
            self.people.relabel(gone, ids[int(np.argmax(total.sums.users))])
        self.grouping = news.grouping
        opened = np.sign(news.grouping.candidates) * 1.0
        self.halves = Halves.none(len(ids), self.rules.dim)._replace(open=opened)
        self.move(news.fresh, last=news.last)

    def move(self, fresh: dict[int, Floats], *, last: bool) -> None:
        """A step of expectation maximisation by the sums of all servers, as they are known."""
        total = self.splits.plus(self.others)
        beliefs, self.halves, self.paying = step(self.beliefs, self.halves, total, self.rules.settled)
        for place, centres in fresh.items():
            self.halves = start_halves(self.halves, beliefs, place, centres)
        if last:
            beliefs = move_population(beliefs, total.sums, self.rules, self.prior)
            self._known = None
            self.guests.look_again()
            self.people.expect(self.grouping.ids[int(np.argmax(beliefs.users))])
        self._believe(beliefs)

    def expect(self, prior: PopulationPrior) -> None:
        """What others have released of the population; where learning starts if it has not begun."""
        self.prior = prior
        if not self.splits.sums.scalars[VISITS]:
            S = prior.covariance
            one = {"centres": prior.mean[None].copy(), "uncertainty": S[None]}
            self._believe(self.beliefs._replace(mean=prior.mean.copy(), covariance=S, **one))

    def labels(self) -> Indices:
        """By the types that users are most probably of."""
        place_of = np.zeros(self.rules.types, dtype=np.int64)
        place_of[list(self.grouping.ids)] = np.arange(len(self.grouping.ids))
        found: Indices = place_of[self.people.labels]
        return found

    def theta(self) -> Floats:
        """Estimates of rewards as they are; what was learned from are centred ones."""
        theta = np.empty_like(self.users.moment)
        means_by_types(self.model, self.people.serving, theta)
        if self.domain.constant is not None:
            theta[:, -1] += CENTRE / self.domain.constant
        return theta

    def overview(self) -> list[LocalOverview]:
        users, own = self.people.members if self.live else self.people.count()
        beliefs = self.beliefs
        weights = (beliefs.users + 1.0) / (beliefs.users + 1.0).sum()
        return [
            LocalOverview(
                users=int(users[k]),
                own=int(own[k]),
                waiting=int(own[k]),
                others=round(float(self.others.sums.visits[place])),
                shared_by=1 + self.sharing,
                kind=TYPE,
                weight=float(weights[place]),
                known=part_known(beliefs.uncertainty[place], beliefs.covariance),
            )
            for place, k in enumerate(self.grouping.ids)
        ]

    def state(self) -> State:
        mean, root, *prior = self.prior
        arrays = flatten(self.beliefs, "beliefs.") | flatten(self.halves, "halves.")
        arrays |= {"paying": self.paying, "prior.mean": mean, "prior.root": root}
        arrays |= {"splits": write_splits(self.splits), "others": write_splits(self.others)}
        values = {"grouping": list(self.grouping), "prior": prior, "sharing": self.sharing}
        return arrays | self.people.arrays(), values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        version, ids, candidates = values["grouping"]
        self.grouping = Grouping(version, tuple(ids), tuple(candidates))
        self.prior = PopulationPrior(arrays["prior.mean"], arrays["prior.root"], *values["prior"])
        self.sharing, shape = values["sharing"], (len(ids), self.rules.dim)
        self.halves, self.paying = rebuild(self.halves, arrays, "halves."), arrays["paying"]
        self.splits = read_splits(arrays["splits"], *shape)
        self.others = read_splits(arrays["others"], *shape)
        self.people.restore(arrays)
        self._known = None
        self._believe(rebuild(self.beliefs, arrays, "beliefs."))
