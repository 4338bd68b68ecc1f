"""What every policy is: parameters, a start, recommend and update, estimates, a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Parameter, Problem, require
from fclub.core.inputs import as_features, as_items, as_reward
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.errors import InvalidSetting, NotStarted, UnknownUser
from fclub.protocol.link import Communications
from fclub.protocol.seam import Kernels, State
from fclub.values import check_parameters

_COMMON = {"name", "_parameters", "_problem", "server_of", "truth", "vectors", "observations"}
"""Attributes of every policy, which its file holds anyway."""


class Policy(ABC):
    """A policy is unbound until `start`; its constructor only stores and checks parameters.

    Subclasses implement `_start`, `_recommend`, `_update` and `theta_`; `labels_`, if users share
    anything; `state` and `restore`, if their attributes are more than arrays, generators and plain
    values. Those that can be played inside compiled code also have `kernels`, `pack` and `unpack`.
    """

    defaults: ClassVar[dict[str, Parameter]] = {}

    def __init__(self, name: str = "", **parameters: Parameter) -> None:
        self.name = name or type(self).__name__.lower()
        self._parameters: dict[str, Parameter] = check_parameters(
            self.name, parameters, self._defaults()
        )
        self._problem: Problem | None = None
        self.server_of: Indices = np.zeros(0, dtype=np.int64)
        self.truth: Indices | None = None
        self.vectors: Floats | None = None
        self.seeded = True
        self.observations = 0

    def _defaults(self) -> Mapping[str, Parameter]:
        """Every parameter with the value that it has unless told otherwise."""
        return self.defaults

    def get_params(self) -> dict[str, Parameter]:
        return dict(self._parameters)

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self._parameters.items())
        return f"<{self.name} {given}>"

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
        sequence = seed if isinstance(seed, SeedSequence) else SeedSequence(seed)
        self.seeded = seed is not None
        self._start(problem, servers.astype(np.int64), sequence, seeded=seed is not None)
        self._problem, self.server_of = problem, servers.astype(np.int64)
        self.observations = 0

    def recommend(self, user: int, items: object) -> int:
        """The index of the item to show to this user; changes nothing."""
        return self._recommend(self._check_user(user), as_items(items, self.problem.dim))

    def update(self, user: int, x: object, reward: object) -> None:
        """Learn that this user rewarded the item with features x."""
        row = self._check_user(user)
        features, y = as_features(x, self.problem.dim), as_reward(reward)
        self._update(row, features, y)
        self.observations += 1
        self.after_round()

    def _check_user(self, user: object) -> int:
        users = self.problem.users
        if isinstance(user, bool) or not isinstance(user, int | np.integer):
            raise UnknownUser(f"a user is a whole number, got {user!r}", user)
        if not 0 <= user < users:
            raise UnknownUser(f"there is no user {user}, only 0 to {users - 1}", user)
        return int(user)

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

    def after_round(self) -> None:  # noqa: B027 - most policies have nothing to do
        """Whatever has to happen between rounds, such as a phase start."""

    def reveal(self, labels: Indices, vectors: Floats | None = None) -> None:
        """Tell the users' true clusters and, if there are any, vectors; only oracles use them."""
        self.truth = np.asarray(labels, dtype=np.int64)
        self.vectors = None if vectors is None else np.asarray(vectors, dtype=np.float64)

    @property
    def kernels(self) -> Kernels | None:
        """What compiled code calls on the packed state, or None."""
        return None

    def pack(self) -> Any | None:
        """The state as arrays that compiled code can play on, or None."""
        return None

    def count_events(self, state: Any) -> None:  # noqa: B027 - only federations have events
        """Add what compiled code has sent to `communications`."""

    def unpack(self, state: Any) -> None:  # noqa: B027 - most states share the policy's arrays
        """Take back what compiled code has changed."""

    @abstractmethod
    def _start(
        self, problem: Problem, server_of: Indices, seed: SeedSequence, seeded: bool
    ) -> None: ...

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
        for key in vars(self).keys() - _COMMON:
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
