"""What an experiment is: policies × one environment × seeds × rounds, as frozen values.

A task is one cell of it. Its digest names its result file, so a file can never be taken for the result
of another setting.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from fclub.config import Parameter, require
from fclub.environments.registry import make_environment
from fclub.policies.registry import POLICIES, make_policy
from fclub.simulation.loop import Progress, simulate
from fclub.simulation.trace import Trace


class Setting(msgspec.Struct, frozen=True):
    """A policy or an environment by name, and the parameters that differ from its defaults."""

    name: str
    parameters: dict[str, Parameter] = {}


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
        return f"{self.policy.name}-{self.environment.name}-{self.seed}-{self.digest}.npz"

    def run(self, progress: Progress | None = None) -> Trace:
        policy = make_policy(self.policy.name, **self.policy.parameters)
        environment = make_environment(self.environment.name, **self.environment.parameters)
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
        require(self.rounds >= 1, "rounds must be at least 1", self.rounds)
        require(len(self.seeds) > 0, "an experiment needs at least one seed", 0)
        require(min(self.seeds) >= 0, "seeds are whole numbers from 0", min(self.seeds))
        for setting in self.policies.values():
            make_policy(setting.name, **setting.parameters)
        make_environment(self.environment.name, **self.environment.parameters)

    def tasks(self) -> list[Task]:
        """All cells, seed by seed, and within a seed one policy of each class before the others.

        On a machine that has no compiled kernels yet, workers that start together then compile
        different ones.
        """
        turn: dict[type, int] = {}
        turns = {}
        for label, policy in self.policies.items():
            kind = type(make_policy(policy.name, **policy.parameters))
            turns[label] = turn[kind] = turn.get(kind, -1) + 1
        return [
            Task(label, self.policies[label], self.environment, self.rounds, seed)
            for seed in self.seeds
            for label in sorted(turns, key=turns.__getitem__)
        ]

    def traces(self, trace_of: Callable[[Task], Trace]) -> dict[str, list[Trace]]:
        """All traces by label, in the order of the seeds."""
        ordered: dict[str, list[Trace]] = {label: [] for label in self.policies}
        for task in self.tasks():
            ordered[task.label].append(trace_of(task))
        return ordered


def policy_setting(name: str, rounds: int, parameters: dict[str, Any]) -> Setting:
    """The parameters that this policy has, out of those given for all.

    The printed tree is provisioned for at least as many rounds as will be played.
    """
    known = make_policy(name).get_params()
    chosen = {key: value for key, value in parameters.items() if key in known}
    horizon = POLICIES[name].defaults.get("horizon")
    if "horizon" not in chosen and isinstance(horizon, int) and rounds > horizon:
        chosen["horizon"] = rounds
    return Setting(name, chosen)
