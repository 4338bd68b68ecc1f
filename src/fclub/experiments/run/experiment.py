"""What an experiment is: policies × one environment × seeds × rounds, as frozen values.

A task is one cell of it. Its digest names its result file, so a file can never be taken for the result
of another setting.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from fclub.config import require
from fclub.environments.base import Environment
from fclub.environments.registry import ENVIRONMENTS, construct, find_environment
from fclub.errors import UnknownName
from fclub.own import digest_of, is_reference
from fclub.parameters import Parameter
from fclub.policies.base import Policy
from fclub.policies.presets import split_preset
from fclub.policies.registry import find_policy, registered
from fclub.simulation.loop import Progress, simulate
from fclub.simulation.trace import Trace


class Setting(msgspec.Struct, frozen=True):
    """A policy or an environment by name, and the parameters that differ from its defaults.

    A class of one's own is named by reference; `code` is the digest of its file.
    """

    name: str
    parameters: dict[str, Parameter] = {}
    code: str | msgspec.UnsetType = msgspec.UNSET

    @staticmethod
    def of(name: str, parameters: dict[str, Parameter]) -> Setting:
        return Setting(name, parameters, digest_of(name) if is_reference(name) else msgspec.UNSET)

    def make_policy(self) -> Policy:
        if self.code is msgspec.UNSET:
            return registered(self.name, **self.parameters)
        self._check_code()
        return find_policy(self.name)(**self.parameters)

    def make_environment(self) -> Environment:
        if self.code is not msgspec.UNSET:
            self._check_code()
        elif is_reference(self.name):
            raise UnknownName("environment", self.name, ENVIRONMENTS)
        return construct(find_environment(self.name), self.parameters)

    def _check_code(self) -> None:
        same = digest_of(self.name) == self.code
        require(same, "the file has changed since the experiment was set up", self.name)

    @property
    def file_name(self) -> str:
        """The name without what a file's name cannot have."""
        return re.sub(r"[^\w.-]+", "_", self.name)


class Task(msgspec.Struct, frozen=True):
    """One simulation; `label` is what the policy is called in results."""

    label: str
    policy: Setting
    environment: Setting
    rounds: int
    seed: int

    @property
    def digest(self) -> str:
        """Of everything that decides the result; the label does not."""
        cell = (self.policy, self.environment, self.rounds, self.seed)
        return hashlib.sha256(msgspec.json.encode(cell, order="sorted")).hexdigest()[:16]

    @property
    def file(self) -> str:
        names = f"{self.policy.file_name}-{self.environment.file_name}"
        return f"{names}-{self.seed}-{self.digest}.npz"

    def run(self, progress: Progress | None = None) -> Trace:
        policy, environment = self.policy.make_policy(), self.environment.make_environment()
        return simulate(policy, environment, self.rounds, self.seed, progress=progress)


class Experiment(msgspec.Struct, frozen=True):
    """Policies by label, in the order in which they are shown."""

    policies: dict[str, Setting]
    environment: Setting
    rounds: int
    seeds: tuple[int, ...]

    def check(self) -> None:
        """Refuse an impossible experiment before anything is computed."""
        require(len(self.policies) > 0, "an experiment needs at least one policy", 0)
        require(isinstance(self.rounds, int), "rounds must be a whole number", self.rounds)
        require(self.rounds >= 1, "rounds must be at least 1", self.rounds)
        require(len(self.seeds) > 0, "an experiment needs at least one seed", 0)
        require(min(self.seeds) >= 0, "seeds are whole numbers from 0", min(self.seeds))
        for setting in self.policies.values():
            setting.make_policy()
        self.environment.make_environment()

    def tasks(self) -> list[Task]:
        """All cells, seed by seed."""
        return [
            Task(label, policy, self.environment, self.rounds, seed)
            for seed in self.seeds
            for label, policy in self.policies.items()
        ]

    def traces(self, trace_of: Callable[[Task], Trace]) -> dict[str, list[Trace]]:
        """All traces by label, in the order of the seeds."""
        ordered: dict[str, list[Trace]] = {label: [] for label in self.policies}
        for task in self.tasks():
            ordered[task.label].append(trace_of(task))
        return ordered


def combinations(
    name: str, grid: Mapping[str, Sequence[Parameter]]
) -> list[tuple[str, dict[str, Parameter]]]:
    """Every combination of values of a policy's parameters, each with a label that tells it.

    >>> combinations("club", {"deletion": [1.0, 2.0], "ridge": [0.5]})[1]
    ('club deletion=2.0 ridge=0.5', {'deletion': 2.0, 'ridge': 0.5})
    """
    found = []
    for values in product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        told = " ".join(f"{key}={value}" for key, value in chosen.items())
        found.append((f"{name} {told}".rstrip(), chosen))
    return found


def policy_setting(name: str, rounds: int, parameters: dict[str, Any]) -> Setting:
    """The parameters that this policy has, out of those given for all.

    A preset comes first. The printed tree is provisioned for at least as many rounds as will be played.
    """
    known = find_policy(name).defaults
    name, constants = (name, {}) if is_reference(name) else split_preset(name)
    chosen = constants | {key: value for key, value in parameters.items() if key in known}
    horizon = known.get("horizon")
    if "horizon" not in chosen and isinstance(horizon, int) and rounds > horizon:
        chosen["horizon"] = rounds
    return Setting.of(name, chosen)
