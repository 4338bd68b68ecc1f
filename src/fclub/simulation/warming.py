"""Compiles the kernels of a policy before anybody waits for them: a few rounds, played both ways."""

from __future__ import annotations

from collections.abc import Mapping

from fclub.core.compiling import is_ready, set_ready
from fclub.environments.synthetic import Synthetic
from fclub.parameters import Parameter
from fclub.policies.registry import POLICIES, make_policy
from fclub.simulation.loop import simulate

Given = Mapping[str, Parameter]

ROUNDS = 300
"""The first phases, from which on clusters and types are learned, start before."""


def is_warm(name: str, given: Given) -> bool:
    """Whether its kernels are compiled; a policy of one's own has none that could be known."""
    return name not in POLICIES or is_ready(_kernels_of(name, given))


def warm(name: str, given: Given) -> None:
    """Play the policy."""
    for fast in (None, False):
        environment = Synthetic(users=8, clusters=2, servers=2, dim=3, items=4)
        simulate(make_policy(name, **_words(given)), environment, ROUNDS, fast=fast)
    set_ready(_kernels_of(name, given))


def _words(given: Given) -> dict[str, Parameter]:
    """Parameters that are numbers, and a plan, do not decide which kernels there are."""
    chosen = {key: value for key, value in given.items() if isinstance(value, str | bool)}
    return {key: value for key, value in chosen.items() if key != "plan"}


def _kernels_of(name: str, given: Given) -> str:
    return f"{name} {sorted(_words(given).items())}"
