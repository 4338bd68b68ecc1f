"""The suite: worlds, policies with their constants, rounds and seeds. To change it is a new version.

Constants were tuned once, by one rule: on `few` and `many` with the seeds 1000 to 1002, which the suite
does not play (`benchmarks/tune.py --rivals` and `--suite`). `fclub-dc`, which has those of the figures
(benchmarks/baselines.toml), `fclub-plus` and `cdp-fclub-plus` play at their defaults.
"""

from __future__ import annotations

import hashlib

import msgspec

from fclub.experiments.run.experiment import Experiment, Setting
from fclub.parameters import Parameter

VERSION = "1"
ROUNDS, SEEDS = 20_000, tuple(range(10))
BASE = "linucb"
"""Regret is told relative to this policy's."""

_SPREAD: dict[str, Parameter] = {"placement": "spread"}
_MIDDLE: dict[str, Parameter] = {**_SPREAD, "users": 200, "clusters": 5, "servers": 10}


class NamedWorld(msgspec.Struct, frozen=True):
    """An environment by name, and what is special about it."""

    environment: Setting
    meaning: str


def _synthetic(meaning: str, parameters: dict[str, Parameter]) -> NamedWorld:
    return NamedWorld(Setting("synthetic", parameters), meaning)


WORLDS: dict[str, NamedWorld] = {
    "few": _synthetic("40 users of 4 clusters on 5 servers, 500 visits each", _SPREAD),
    "many": _synthetic(
        "1,000 users of 10 clusters on 10 servers, 20 visits each",
        {**_SPREAD, "users": 1000, "clusters": 10, "servers": 10},
    ),
    "newcomers": _synthetic(
        "200 users of 5 clusters on 10 servers, who come by Zipf's law, a fifth of them late",
        {**_MIDDLE, "visits": "zipf", "newcomers": 0.2},
    ),
    "gaussian": _synthetic(
        "the same users, all alike; rewards θᵀx with Gaussian noise, σ = 0.25",
        {**_MIDDLE, "noise": 0.25},
    ),
    "corrupted": _synthetic(
        "the same; a tenth of the users say the opposite of what they like",
        {**_MIDDLE, "corrupted": 0.1, "corruption": "inverted"},
    ),
    "drift": _synthetic(
        "the same; halfway every cluster has a new taste", {**_MIDDLE, "change": "drift"}
    ),
    "split": _synthetic(
        "the same; halfway half of each cluster's users have a new taste",
        {**_MIDDLE, "change": "split"},
    ),
    "misfit": _synthetic(
        "the same; expected rewards are up to 0.1 off any linear model", {**_MIDDLE, "misfit": 0.1}
    ),
    "late": _synthetic(
        "the same; rewards are known 500 visits later, half of the servers are gone halfway",
        {**_MIDDLE, "delay": 500, "dropout": 0.5},
    ),
}

POLICIES: dict[str, dict[str, Parameter]] = {
    "random": {},
    "linucb": {"exploration": 0.3, "ridge": 2.0},
    "greedy": {},
    "lin-ts": {},
    "shrunk": {"ridge": 1.0, "exploration": 0.0},
    "club": {"deletion": 1.0, "exploration": 0.15, "ridge": 1.0},
    "sclub": {"deletion": 1.0, "exploration": 0.15, "ridge": 1.0},
    "rclumb": {},
    "locb": {},
    "dis-linucb": {},
    "async-linucb": {},
    "fed-linucb": {},
    "heto-fedbandit": {},
    "fclub-dc": {},
    "fclub-plus": {},
    "cdp-fclub-plus": {},
}
"""Policies of the suite, and the constants at which they play where those are not their defaults."""


def settings() -> dict[str, Setting]:
    return {name: Setting(name, constants) for name, constants in POLICIES.items()}


def experiment(world: str, policies: dict[str, Setting], seeds: tuple[int, ...] = SEEDS) -> Experiment:
    return Experiment(policies, WORLDS[world].environment, ROUNDS, seeds)


def digest() -> str:
    """Of everything that decides a result but the code."""
    suite = (VERSION, ROUNDS, SEEDS, WORLDS, POLICIES)
    return hashlib.sha256(msgspec.json.encode(suite, order="sorted")).hexdigest()[:16]
