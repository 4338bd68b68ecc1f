"""What every policy is: parameters, a start, recommend and update, estimates, a file."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem, require
from fclub.core.inputs import as_features, as_index, as_items, as_reward
from fclub.core.packing import flatten, rebuild
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.errors import InvalidSetting, NotStarted, UnknownName, UnknownUser
from fclub.parameters import Parameters, changed
from fclub.protocol.interfaces.family import Compiled, Kernels
from fclub.protocol.interfaces.learner import State
from fclub.protocol.link import Communications

_COMMON = {"_problem", "server_of", "truth", "vectors", "observations"}
"""Attributes of every policy, which its file holds anyway."""


_ANY = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


class Policy(Parameters, ABC):
    """A policy is unbound until `start`; its constructor only stores and checks parameters.

    Subclasses declare parameters as annotated attributes with a default, and implement `_start`,
    `_recommend`, `_update` and `theta_`; `labels_`, if users share anything; `state` and `restore`, if
    their attributes are more than arrays, generators and plain values; `compiled`, if compiled code can
    play them.

    >>> import fclub
    >>> import numpy as np
    >>> class Fixed(fclub.Policy):
    ...     first: int = 0
    ...     def _start(self):
    ...         self.seen = 0
    ...     def _recommend(self, user, items):
    ...         return min(self.first, len(items) - 1)
    ...     def _update(self, user, x, y):
    ...         self.seen += 1
    ...     @property
    ...     def theta_(self):
    ...         return np.zeros((self.problem.users, self.problem.dim))
    >>> fclub.simulate(Fixed(first=2), "synthetic", rounds=100)
    <Trace of fixed in synthetic, seed 0: 100 rounds, regret ...>
    """

    name: ClassVar[str] = "policy"
    switches: ClassVar[Mapping[str, str]] = {}
    oracle: ClassVar[bool] = False
    """It is told the truth."""
    catalogue: ClassVar[bool] = False
    """It is of use only where items come again."""
    rival: ClassVar[bool] = False
    """It is of another paper than the figures, which compare what theirs does."""

    def __init_subclass__(cls) -> None:
        """What has no name of its own is called as its class."""
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self._problem: Problem | None = None
        self.server_of: Indices = np.zeros(0, dtype=np.int64)
        self.truth: Indices | None = None
        self.vectors: Floats | None = None
        self.seeded = True
        self.observations = 0

    def __repr__(self) -> str:
        return f"<{self.name} {changed(self)}".rstrip() + ">"

    @property
    def problem(self) -> Problem:
        if self._problem is None:
            raise NotStarted(f"{self.name}: call start(problem, server_of) first")
        return self._problem

    if not TYPE_CHECKING:  # a type checker knows what exists

        def __getattr__(self, name: str) -> Any:
            """Called for what is missing: most of a policy exists only once it was started."""
            if vars(self).get("_problem") is None and not name.startswith("__"):
                raise NotStarted(
                    f"{type(self).__name__} has no {name} before start(problem, server_of)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def start(
        self, problem: Problem, server_of: object, seed: int | SeedSequence | None = None
    ) -> None:
        """Bind to a problem; `server_of[user]` is the server of each user.

        `seed` makes noise and random graphs reproducible, which is for simulation only.
        """
        servers = np.array(server_of)
        require(servers.shape == (problem.users,), "server_of needs one server per user", server_of)
        whole = np.issubdtype(servers.dtype, np.integer)
        inside = whole and bool(np.all((servers >= 0) & (servers < problem.servers)))
        require(inside, f"servers are numbered from 0 to {problem.servers - 1}", server_of)
        self._problem, self.server_of = problem, servers.astype(np.int64)
        self.seeded, self.observations = seed is not None, 0
        known = {
            "problem": problem,
            "server_of": self.server_of,
            "seed": seed if isinstance(seed, SeedSequence) else SeedSequence(seed),
            "seeded": self.seeded,
        }
        wanted = inspect.signature(self._start).parameters
        for key, argument in wanted.items():
            if key not in known and argument.default is argument.empty and argument.kind not in _ANY:
                raise UnknownName(f"argument of {self.name}'s _start", key, known)
        try:
            self._start(**{name: value for name, value in known.items() if name in wanted})
        except BaseException:
            self._problem = None
            raise

    def recommend(self, user: int, items: object) -> int:
        """The index of the item to show to this user; changes nothing."""
        row, offer = _as_user(user, self.problem.users), as_items(items, self.problem.dim)
        return as_index(self._recommend(row, offer), len(offer), self.name)

    def update(self, user: int, x: object, reward: object) -> None:
        """Learn that this user rewarded the item with features x."""
        row = _as_user(user, self.problem.users)
        features = as_features(x, self.problem.dim)
        y = as_reward(reward, *self.problem.reward_range)
        self._update(row, features, y)
        self.observations += 1
        self.after_round()

    @property
    def communications(self) -> Communications:
        """What was sent so far; nothing, for policies without a federation."""
        return Communications()

    def privacy_report(self) -> dict[str, object] | None:
        """Claimed and spent budget, or None for policies that promise nothing."""
        return None

    @property
    def next_stop(self) -> int | None:
        """The number of observations at which `after_round` next has something to do."""
        return None

    def after_round(self) -> None:
        """Whatever has to happen between rounds, such as a phase start."""

    def reveal(self, labels: Indices, vectors: Floats | None = None) -> None:
        """Tell the users' true clusters and, if there are any, vectors; only oracles use them."""
        self.truth = np.asarray(labels, dtype=np.int64)
        self.vectors = None if vectors is None else np.array(vectors, dtype=np.float64)

    @property
    def compiled(self) -> Compiled | None:
        """How compiled code plays it, block by block; None where it cannot."""
        return None

    @abstractmethod
    def _start(self, *args: Any, **known: Any) -> None:
        """Make the state of the first round.

        It is given those of `problem`, `server_of`, `seed` (a SeedSequence) and `seeded` that it has
        arguments for.
        """

    @abstractmethod
    def _recommend(self, user: int, items: Matrix) -> int: ...

    @abstractmethod
    def _update(self, user: int, x: Vector, y: float) -> None: ...

    @property
    def labels_(self) -> Indices:
        """One integer per user: its (global) cluster; by default each user is alone in its own."""
        return np.arange(self.problem.users)

    @property
    @abstractmethod
    def theta_(self) -> Floats:
        """(n, d): the estimate that each user is served from."""

    def state(self) -> State:
        """Arrays and JSON-ready values from which `restore` continues."""
        arrays: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for key in vars(self).keys() - _COMMON - self.parameters.keys():
            value = getattr(self, key)
            if isinstance(value, np.ndarray):
                arrays[key] = value
            else:
                drawn = isinstance(value, np.random.Generator)
                values[key] = value.bit_generator.state if drawn else value
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        """Continue from what `state` gave; the policy was started on the same problem before."""
        for key, value in (arrays | values).items():
            if isinstance(getattr(self, key), np.random.Generator):
                getattr(self, key).bit_generator.state = value
            else:
                setattr(self, key, value)

    def save(self, path: object) -> None:
        """Write everything to one .npz file, without pickle."""
        from fclub.policies.saving import save_policy

        save_policy(self, path)

    @classmethod
    def load(cls, path: object) -> Policy:
        """The policy that `save` wrote, ready to continue."""
        from fclub.policies.saving import load_policy

        policy = load_policy(path, cls)
        if not isinstance(policy, cls):
            raise InvalidSetting(f"{path} holds a {policy.name}, not a {cls.__name__}", policy.name)
        return policy


def summary_of(kind: type[Policy]) -> str:
    """What such a policy is, in a line."""
    return (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def is_compared(kind: type[Policy]) -> bool:
    """Whether such a policy is run where nobody names policies."""
    return not (kind.oracle or kind.catalogue or kind.rival)


def _as_user(user: object, users: int) -> int:
    if isinstance(user, bool) or not isinstance(user, int | np.integer):
        raise UnknownUser(f"a user is a whole number, got {user!r}", user)
    if not 0 <= user < users:
        raise UnknownUser(f"there is no user {user}, only 0 to {users - 1}", user)
    return int(user)


Arrays = TypeVar("Arrays")
"""The named tuple that is the whole state of a policy."""


@dataclass(frozen=True)
class InPlace:
    """Kernels that play on a policy's own arrays: nothing is handed over or taken back.

    Which arrays these are is asked at every block: a policy may replace them between two blocks.
    """

    kernels: Kernels
    arrays: Callable[[], Any]

    def pack(self) -> Any:
        return self.arrays()

    def count_events(self, state: Any) -> None:
        """The state itself counts."""

    def unpack(self, state: Any) -> None:
        """The policy has it."""


class KernelPolicy(Policy, Generic[Arrays]):
    """Its state is one named tuple of arrays, played by two kernels.

    Subclasses have `kernels`, (recommend, feedback), and `_begin`.
    """

    kernels: ClassVar[Kernels]

    @abstractmethod
    def _begin(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> Arrays:
        """The state before the first round."""

    def _start(self, problem: Problem, server_of: Indices, seed: SeedSequence) -> None:
        self._state = self._begin(problem, server_of, seed)

    def _recommend(self, user: int, items: Matrix) -> int:
        return self.kernels[0](self._state, user, items)

    def _update(self, user: int, x: Vector, y: float) -> None:
        self.kernels[1](self._state, user, x, y)

    @property
    def compiled(self) -> Compiled:
        return InPlace(self.kernels, lambda: self._state)

    def state(self) -> State:
        drawn = {name: source.bit_generator.state for name, source in _generators(self._state).items()}
        return flatten(self._state), drawn

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self._state = rebuild(self._state, arrays)
        for name, source in _generators(self._state).items():
            source.bit_generator.state = values[name]


def _generators(state: Any) -> dict[str, np.random.Generator]:
    """Where a policy's own draws come from, if it has any."""
    fields = state._asdict().items()
    return {name: value for name, value in fields if isinstance(value, np.random.Generator)}


@dataclass(frozen=True)
class Rows:
    """Users in rows sorted by server, so that a server's users are one slice of every array.

    `row_of[user]` and its inverse `user_of[row]`; server s has rows first[s] to first[s+1].
    """

    row_of: Indices
    user_of: Indices
    server: Indices
    first: Indices

    @staticmethod
    def by_server(server_of: Indices, servers: int) -> Rows:
        user_of = np.argsort(server_of, kind="stable").astype(np.int64)
        row_of = np.empty_like(user_of)
        row_of[user_of] = np.arange(len(user_of))
        server = server_of[user_of]
        first = np.searchsorted(server, np.arange(servers + 1)).astype(np.int64)
        return Rows(row_of, user_of, server, first)
