"""A local server of the plus policies: soft clusters inside, released sums outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fclub.core.clustering import number_by_first
from fclub.core.packing import flatten, inside, rebuild, under, with_row
from fclub.core.plus.mixture import newcomer
from fclub.core.plus.population import Population
from fclub.core.plus.rounds import MixtureRound, clear, feedback, recommend, replace
from fclub.core.statistics import Packed, Statistics
from fclub.core.types import Counts, Floats, Indices, Matrix, Vector
from fclub.errors import CannotReplace, InvalidMessage
from fclub.privacy.ledger import Stream
from fclub.privacy.sensitivity import CENTRE, Domain
from fclub.protocol.exchanges.releases import Releases
from fclub.protocol.link import Uplink
from fclub.protocol.messages import Message, PhaseStart, write_id
from fclub.protocol.numbering import Numbering
from fclub.protocol.phase import GeometricClock
from fclub.protocol.plus.detection import Detecting, Detection
from fclub.protocol.plus.digests import news_of
from fclub.protocol.plus.messages import Digest, Shares
from fclub.protocol.plus.outside import Outside
from fclub.protocol.plus.rules import PlusRules
from fclub.protocol.seam import (
    NOTHING,
    OBSERVATIONS,
    Beginning,
    Bound,
    LocalOverview,
    Outlook,
    Slotted,
    State,
    part_known,
)


class PlusLocal(Detecting):
    """Keeps a Gaussian for each of its users; `serving` may be a slice of a federation's arrays.

    With a clock of its own a server detects and asks for news when its own count calls for it, as a
    live one does; without one it waits for the global server to start a phase.

    What was released and waits to be sent is `unsent`: no reward can be replaced meanwhile.
    """

    by_user: tuple[str, ...] = ()
    model = None
    """It has no types to serve from."""

    def __init__(
        self,
        serving: MixtureRound,
        rules: PlusRules,
        domain: Domain,
        releases: Releases,
        rng: np.random.Generator,
        link: Uplink,
        clock: GeometricClock | None = None,
    ) -> None:
        self.rules, self.domain = rules, domain
        self.serving = self.room = serving
        serving.covariance[:] = np.linalg.inv(rules.prior)
        constant = -1 if domain.constant is None else rules.dim - 1
        self.population = Population.expecting(1.0 / np.diag(rules.prior), constant)
        self.variance = rules.variance
        self.releases, self.rng, self.link, self.clock = releases, rng, link, clock
        self.dim = serving.theta.shape[1]
        self.labels: Indices = np.zeros(len(serving.theta), dtype=np.int64)
        self.alpha = 1.0
        self.numbering = Numbering()
        self.ids: list[int] = []
        self.outside = Outside()
        self.told: dict[int, int] = {}
        self.joined: Indices = np.zeros((len(serving.theta), 2), dtype=np.int64)
        self.unanswered = self.paused = self.unsent = False
        self._detection = None

    @property
    def users(self) -> Packed:
        return self.serving.users

    @property
    def counts(self) -> Counts:
        return self.users.counts

    @property
    def theta(self) -> Floats:
        """Estimates of rewards as they are; what was learned from are centred ones."""
        theta = self.serving.theta.copy()
        if self.domain.constant is not None:
            theta[:, -1] += CENTRE / self.domain.constant
        return theta

    @property
    def observations(self) -> int:
        return int(self.users.counts.sum())

    @property
    def waiting(self) -> int:
        """Observations that the global server does not know of."""
        return max(0, self.observations - self.releases.closed - sum(self.told.values()))

    @property
    def served_by(self) -> Indices:
        """The cluster 0, 1, … of every user in the most probable partition."""
        return number_by_first(self.labels)

    def add_user(self) -> int:
        """A user who was not there before; returns its row.

        It may be like any user of this server or like none of them, so it is served by the mixture of
        all users' Gaussians and, with mass α, the population. Until the next detection it is counted
        with the largest cluster.
        """
        row, population = len(self.serving.theta), self.population
        mean, covariance = population.mean, population.covariance
        if self.observations:
            others = self.serving.theta, self.serving.covariance
            mean, covariance = newcomer(*others, population, self.alpha)
        self.serving, self.room = with_row(self.serving, self.room)
        self.serving.row_of[row] = row
        self.serving.theta[row], self.serving.covariance[row] = mean, covariance
        self.serving.vector[row] = np.linalg.solve(covariance, mean)
        self.serving.weight[row] = 1.0 / self.variance
        self.releases.add_user(self.users)
        self._count_with_most(1)
        return row

    def recommend(self, row: int, items: Matrix) -> int:
        return recommend(self.serving, row, items)

    def observe(self, row: int, x: Vector, y: float) -> None:
        self.domain.check(x, y - self.serving.centre)
        feedback(self.serving, row, x, y)

    def withhold(self, row: int, x: Vector, y: float) -> None:
        before = Statistics.of(self.users, row).copy()
        self.observe(row, x, y)
        self.releases.withhold(row, Statistics.of(self.users, row) - before)

    def replace(self, row: int, x: Vector, old: float, new: float) -> None:
        """The user's Gaussian moves as if the other reward had been learned; the rest learns later."""
        if self.unsent:
            raise CannotReplace(
                "what this reward is in may have been released, and is about to be sent"
            )
        replace(self.serving, row, x, old, new)

    @property
    def slotted(self) -> Slotted | None:
        return None

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        """What was not released meanwhile is due at the next detection."""
        self.paused = False

    used = 0

    def begin(self, beginning: Beginning) -> None:
        """Released sums are sent again: functions of what was sent before, they cost nothing."""
        if beginning.local_old:
            self.releases.close()
        self.told, self.unanswered = {}, False
        if self.clock is not None and len(self.labels):
            self._report(self.clock.phase)

    def bound(self, row: int) -> Bound:
        serving = self.serving
        told = serving.theta[row].copy(), serving.covariance[row].copy(), serving.exploration
        return Bound(*told, serving.centre, 1.0 - serving.centre)

    def stored(self, row: int) -> Statistics:
        return Statistics.of(self.users, row).copy()

    def forget(self, row: int) -> int:
        """The next detection does without this user; what others are served from is learned anew then.

        Clusters with the user get new numbers, so that no server keeps a sum in which it is. What is
        being found with the user is of no use any more.
        """
        released = self.releases.forget(row)
        clear(self.serving, row, self.rules.prior)
        self.numbering.forget(row)
        if self._detection is not None and self._detection.following is None:
            self._detection = Detection()
        return released if self.told else 0

    def due(self) -> Callable[[], None] | None:
        """Nothing while a detection is under way."""
        if self.clock is None or self._detection is not None:
            return None
        if self.observations < max(1, self.clock.next_start):
            return None
        return self._begin_phase

    @property
    def busy(self) -> bool:
        return self._detection is not None

    def receive(self, message: Message) -> None:
        match message:
            case PhaseStart() if self.clock is None:
                self.detect()
                self._report(message.phase)
            case Shares():
                self.outside.adopt(message, self.rules)
                self.unanswered = False
            case _:
                raise InvalidMessage(f"a local server does not take a {type(message).__name__}")

    def _report(self, phase: int) -> None:
        """Send the released sums of the clusters that have something new.

        A server with its own clock asks for the others' news also when it has none.
        """
        self.unsent = False
        if not self.rules.share:
            return
        labels = np.arange(len(self.labels))
        if not self.rules.separate:
            labels = number_by_first(self.labels)
        self.ids = self.numbering.number(labels)
        news, told = news_of(self.releases, labels, self.ids, self.told)
        if news or told.keys() != self.told.keys() or self.clock is not None:
            self.told, self.unanswered = told, True
            present = tuple(write_id(number) for number in told)
            self.link.to_global(Digest(phase, present, tuple(news)))

    @property
    def group_of(self) -> Indices:
        """Users of clusters that the global server does not know get a number < 0 by cluster."""
        of_cluster = [self.outside.groups.get(number, -1 - c) for c, number in enumerate(self.ids)]
        if not of_cluster:
            return -1 - number_by_first(self.labels)
        labels = np.arange(len(self.labels)) if self.rules.separate else self.labels
        return np.array(of_cluster, dtype=np.int64)[number_by_first(labels)]

    def streams(self) -> dict[str, Stream]:
        return self.releases.open_streams()

    def overview(self) -> list[LocalOverview]:
        """Clusters of the most probable partition."""
        labels = self.served_by
        members = [np.flatnonzero(labels == c) for c in range(labels.max(initial=-1) + 1)]
        return [self._overview_of(c, users) for c, users in enumerate(members)]

    def _overview_of(self, c: int, users: Indices) -> LocalOverview:
        """Where users are reported apart, a cluster has an id only if it has one user."""
        reported = users.tolist() if self.rules.separate else [c]
        ids = [self.ids[k] for k in reported if k < len(self.ids)]
        known = self.outside.groups
        groups = [known[number] for number in ids if number in known]
        own, (others, sharing) = int(self.counts[users].sum()), self.joined[users[0]]
        return LocalOverview(
            cluster=ids[0] if len(ids) == 1 else None,
            group=groups[0] if len(set(groups)) == 1 else None,
            users=len(users),
            own=own,
            others=int(others),
            waiting=max(0, own - sum(self.told.get(number, 0) for number in ids)),
            shared_by=int(sharing) + 1,
            known=part_known(self.serving.covariance[users].mean(axis=0), self.population.covariance),
        )

    @property
    def outlook(self) -> Outlook:
        if not self.rules.share:
            return Outlook(NOTHING)
        return Outlook(OBSERVATIONS, self.observations, self.clock.next_start if self.clock else None)

    def state(self) -> State:
        outside, told = self.outside.state(self.dim)
        arrays = (
            outside | flatten(self.serving, "round.") | {"labels": self.labels, "joined": self.joined}
        )
        arrays |= under("releases.", self.releases.state()) | flatten(self.population, "population.")
        found, under_way = ({}, None) if self._detection is None else self._detection.state()
        return arrays | found, told | {
            "alpha": self.alpha,
            "ids": self.ids,
            "told": list(self.told.items()),
            "variance": self.variance,
            "unanswered": self.unanswered,
            "unsent": self.unsent,
            "detection": under_way,
            "clock": None if self.clock is None else self.clock.state(),
            "numbering": self.numbering.state(),
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        if len(arrays["labels"]) == len(self.labels):
            for name, array in flatten(self.serving, "round.").items():
                array[...] = arrays[name]
        else:
            self.serving = self.room = rebuild(self.serving, arrays, "round.")
        self.releases.restore(inside("releases.", arrays), self.users)
        self.labels, self.joined, self.ids = arrays["labels"], arrays["joined"], list(values["ids"])
        self.alpha, self.told = values["alpha"], dict(values["told"])
        self.variance = values["variance"]
        self.population = rebuild(self.population, arrays, "population.")
        self.outside.restore(arrays, values)
        self.unanswered, self.unsent = bool(values["unanswered"]), bool(values["unsent"])
        under_way = values["detection"]
        self._detection = under_way and Detection.restored(arrays, under_way, self.population)
        if self.clock is not None:
            self.clock.restore(values["clock"])
        self.numbering.restore(values["numbering"])
        self.rng.bit_generator.state = values["rng"]
