"""What figures are made of: panels, each an experiment with all the policies that it compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fclub.environments.base import PLACEMENTS
from fclub.environments.registry import make_environment
from fclub.errors import DataMissing
from fclub.experiments.run.experiment import Experiment, Setting, policy_setting
from fclub.experiments.study.study import Panel
from fclub.policies.registry import POLICIES

ROUNDS, SEEDS = 100_000, 10
TITLES = {"movielens": "MovieLens", "yelp": "Yelp"}


@dataclass(frozen=True)
class Scale:
    """How much is simulated; `data` is the folder of the published arrays, None the usual ones."""

    rounds: int = ROUNDS
    seeds: tuple[int, ...] = tuple(range(SEEDS))
    data: str | None = None


def compared() -> list[str]:
    """Every policy that does not know the true clusters."""
    return [name for name, entry in POLICIES.items() if not entry.oracle]


def private(name: str) -> bool:
    return POLICIES[name].switches.get("noise", "none") != "none"


def trigger(name: str) -> str:
    return POLICIES[name].switches.get("trigger", "")


def make_panel(
    key: str,
    title: str,
    scale: Scale,
    policies: dict[str, Setting],
    environment: Setting,
    value: float | None = None,
) -> Panel:
    return Panel(key, title, Experiment(policies, environment, scale.rounds, scale.seeds), value)


def plain(names: list[str], scale: Scale) -> dict[str, Setting]:
    return {name: policy_setting(name, scale.rounds, {}) for name in names}


def synthetic_panel(placement: str, scale: Scale) -> Panel:
    """The default placement is left out of the settings, so that figures share its simulations."""
    parameters: dict[str, Any] = {} if placement == PLACEMENTS[0] else {"placement": placement}
    title = f"Synthetic, users placed in {placement}" if not parameters else "Synthetic, users spread"
    environment = Setting("synthetic", parameters)
    return make_panel(f"synthetic-{placement}", title, scale, plain(compared(), scale), environment)


def data_panels(
    name: str, variants: tuple[str, ...], scale: Scale
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The variants of a data set that are here, and why the others are left out."""
    panels, skipped = [], []
    for variant in variants:
        given = {} if scale.data is None or variant == "printed" else {"path": scale.data}
        environment = Setting(name, {"variant": variant, **given})
        try:
            make_environment(name, **environment.parameters)
        except DataMissing as error:
            skipped.append(f"{name} {variant}: {error}")
            continue
        title = f"{TITLES[name]}, {variant}"
        policies = plain(compared(), scale)
        panels.append(make_panel(f"{name}-{variant}", title, scale, policies, environment))
    return tuple(panels), tuple(skipped)
