"""What every environment is: a problem, servers, true clusters, visits, rewards and their regret."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, SupportsFloat, get_args

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem
from fclub.core.compiling import DirectCall
from fclub.core.types import Flags, Floats, Indices, Matrix
from fclub.environments.world import (
    BERNOULLI,
    CATALOGUE,
    Answers,
    Catalogue,
    World,
    check_law,
    draw_items,
    draw_reward,
    draw_user,
    no_catalogue,
    regret_of,
    start_arrivals,
    start_changes,
)
from fclub.errors import InvalidInput, InvalidSetting, NotStarted
from fclub.parameters import Parameter, meaning

Items = Annotated[int, meaning("items on offer at a visit", least=1)]
Placement = Annotated[
    Literal["blocks", "spread"],
    meaning("where the users of a cluster are: on few servers (blocks), or dealt out to all (spread)"),
]
Visits = Annotated[
    Literal["uniform", "zipf", "round-robin"],
    meaning("how often users come: all alike, by Zipf's law, or one after the other"),
]
Newcomers = Annotated[
    float, meaning("share of users whose first visit is in the second half", least=0, below=1)
]


@dataclass(frozen=True)
class Outcome:
    """The reward that was seen, and the expected loss against the best item on offer.

    >>> import fclub
    >>> environment = fclub.make_environment("synthetic")
    >>> environment.start(seed=0)
    >>> user, items = environment.visit()
    >>> outcome = environment.feedback(0)
    >>> outcome.reward in (0.0, 1.0) and outcome.regret >= 0.0
    True
    """

    reward: float
    regret: float

    def __post_init__(self) -> None:
        for name, value in (("reward", self.reward), ("regret", self.regret)):
            if not isinstance(value, SupportsFloat) or not isfinite(value):
                raise InvalidInput(f"{name} must be a finite number, got {value!r}", value)


def as_outcome(outcome: object, environment: str) -> Outcome:
    """What an environment has answered."""
    if not isinstance(outcome, Outcome):
        raise InvalidInput(f"{environment}: feedback must return an Outcome, got {outcome!r}", outcome)
    return outcome


class Environment(ABC):
    """Same seed, same users, items and reward draws, whatever the policy does.

    `labels` (the true clusters) and `server_of` are final once `start` has run: where users are drawn
    from data they depend on the seed. Its `name` is that of its class unless it says another.

    >>> import fclub
    >>> import numpy as np
    >>> class Coin(fclub.Environment):
    ...     def __init__(self):
    ...         self.problem = fclub.Problem(users=2, servers=1, dim=2)
    ...         self.server_of = self.labels = np.zeros(2, dtype=np.int64)
    ...     def start(self, seed):
    ...         self.rng = np.random.default_rng(seed)
    ...     def visit(self):
    ...         return int(self.rng.integers(2)), np.eye(2)
    ...     def feedback(self, index):
    ...         return fclub.Outcome(reward=float(index), regret=1.0 - index)
    >>> fclub.simulate("linucb", Coin(), rounds=100)
    <Trace of linucb in coin, seed 0: 100 rounds, regret ...>
    """

    name: ClassVar[str] = "environment"
    problem: Problem
    server_of: Indices
    rounds: int | None = None
    delay: int = 0
    """Later visits before a reward is known: the policy learns of visit t after visit t + delay."""
    _labels: Indices | None = None

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @property
    def labels(self) -> Indices:
        if self._labels is None:
            raise NotStarted(f"{self.name}: call start(seed) first")
        return self._labels

    @labels.setter
    def labels(self, labels: Indices) -> None:
        self._labels = labels

    @property
    def knows_clusters(self) -> bool:
        """Whether `labels` are the true clusters, and not merely a guess; to be asked after `start`."""
        return True

    @property
    def vectors(self) -> Floats | None:
        """(n, d): the true vector of every user, where rewards are θᵀx; None where they are not."""
        return None

    @property
    def is_newcomer(self) -> Flags:
        """(n,): who comes for the first time when half of the rounds have been played."""
        return np.zeros(self.problem.users, dtype=np.bool_)

    def get_params(self) -> dict[str, Parameter]:
        """The settings that a trace should mention."""
        return {}

    def expect_rounds(self, rounds: int) -> None:
        """Tell how many visits there will be, before `start`; worlds that change on the way need it."""
        self.rounds = rounds

    @abstractmethod
    def start(self, seed: int | SeedSequence) -> None:
        """Draw the users' vectors and rewind to the first visit."""

    @abstractmethod
    def visit(self) -> tuple[int, Matrix]:
        """The next user and the items it may be shown."""

    @abstractmethod
    def feedback(self, index: int) -> Outcome:
        """What follows from showing item `index` of the last visit."""

    def pack(self) -> Any | None:
        """The world for compiled code, or None if it has to be played visit by visit."""
        return None


class LinearEnvironment(Environment):
    """Items are drawn afresh for every visit; rewards are Bernoulli(θᵀx), or a catalogue's."""

    items: int
    visits: str = "uniform"
    newcomers: float = 0.0
    drift: float = 0.0
    dropout: float = 0.0
    _world: World | None = None

    @property
    def theta(self) -> Floats:
        """(n, d): the vector of every user."""
        return self.world.theta

    @property
    def vectors(self) -> Floats | None:
        return None if self._kind == CATALOGUE else self.theta

    @property
    def world(self) -> World:
        if self._world is None:
            raise NotStarted(f"{self.name}: call start(seed) first")
        return self._world

    def _set_arrivals(self, visits: str, newcomers: float) -> None:
        """Who comes when: `visits` is the law, `newcomers` the share of users who come late."""
        check_law(visits, newcomers, self.problem.users)
        self.visits, self.newcomers = visits, newcomers

    @property
    def is_newcomer(self) -> Flags:
        return self.world.arrivals.is_newcomer

    @abstractmethod
    def _draw_theta(self, rng: np.random.Generator) -> Floats: ...

    @property
    @abstractmethod
    def _kind(self) -> int: ...

    def _later(self, theta: Floats, rng: np.random.Generator) -> Floats | None:
        """Everybody's vector from the middle of the rounds on, if it is another."""
        return None

    def _answers(self, rng: np.random.Generator) -> Answers:
        """Honest answers by a fair coin."""
        honest = np.ones(self.problem.users, dtype=np.int64)
        return Answers(BERNOULLI, 0.0, np.zeros(self.problem.dim), honest)

    def _catalogue(self) -> Catalogue:
        """Real items, where there are any; called after `_draw_theta`."""
        return no_catalogue()

    def start(self, seed: int | SeedSequence) -> None:
        sequence = seed if isinstance(seed, SeedSequence) else SeedSequence(seed)
        streams = [np.random.default_rng(child) for child in sequence.spawn(9)]
        users, visitors, items, rewards, order, tastes, leaving, later, answers = streams
        theta = self._draw_theta(users)
        after = self._later(theta, later)
        if after is not None and self.rounds is None:
            raise InvalidSetting("tastes change halfway: call expect_rounds before start")
        changes = start_changes(self.drift, theta, tastes, after, (self.rounds or 0) // 2)
        law = self.visits, self.newcomers, len(theta), self.rounds
        arrivals = start_arrivals(*law, visitors, order, self._leaving(leaving))
        drawn = changes, items, rewards
        self._world = World(
            self._kind, theta, arrivals, *drawn, self._catalogue(), self._answers(answers)
        )
        self._draw_user, self._draw_items = DirectCall(draw_user), DirectCall(draw_items)
        self._regret_of, self._draw_reward = DirectCall(regret_of), DirectCall(draw_reward)

    def _leaving(self, rng: np.random.Generator) -> Flags:
        """(n,): the users of the servers that are gone in the second half."""
        gone = rng.permutation(self.problem.servers)[: round(self.dropout * self.problem.servers)]
        return np.isin(self.server_of, gone)

    def visit(self) -> tuple[int, Matrix]:
        world = self.world
        self._user = self._draw_user(world)
        self._items = np.empty((self.items, self.problem.dim))
        self._draw_items(world, self._user, self._items)
        return self._user, self._items.copy()

    def feedback(self, index: int) -> Outcome:
        if not 0 <= index < self.items:
            raise InvalidInput(f"there is no item {index}, only 0 to {self.items - 1}", index)
        shown = self.world, self._user, self._items, index
        return Outcome(reward=self._draw_reward(*shown), regret=self._regret_of(*shown))

    def pack(self) -> World:
        return self.world


PLACEMENTS: tuple[str, ...] = get_args(get_args(Placement)[0])


def place(users: int, servers: int, placement: str) -> Indices:
    """The server of every user, users being sorted by true cluster.

    `blocks`: consecutive users share a server, so a server meets few clusters. `spread`: users are
    dealt out in turn, so every server meets every cluster.
    """
    index = np.arange(users)
    return index * servers // users if placement == "blocks" else index % servers
