"""Would federating pay? A file of ratings is played, and the answer is put in words."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from scipy.stats import t as student

from fclub.config import require
from fclub.core.types import Floats
from fclub.environments.registry import make_environment
from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.study.study import Figure, Panel
from fclub.parameters import Parameter

ALONE, TOGETHER, PRIVATE, LINUCB, POPULAR = (
    "alone",
    "together",
    "together, private",
    "linucb",
    "popular",
)
CONFIDENCE = 0.9
LITTLE = 0.01
"""A gain or loss below this share of the regret is called none."""


def advice_figure(
    path: str, servers: int, visits: int, seeds: int, budget: dict[str, Parameter]
) -> Figure:
    """All users of the file with enough ratings, on so many servers, with so many visits each."""
    require(visits >= 1, "visits must be at least 1", visits)
    require(seeds >= 1, "seeds must be at least 1", seeds)
    given: dict[str, Parameter] = {
        "path": path,
        "users": None,
        "servers": servers,
        "placement": "spread",
    }
    users = make_environment("liked", **given).problem.users
    policies = {
        ALONE: Setting("fclub-plus", {"share": False}),
        TOGETHER: Setting("fclub-plus"),
        PRIVATE: Setting("cdp-fclub-plus", budget),
        LINUCB: Setting("linucb"),
        POPULAR: Setting("popular"),
    }
    world = Setting("liked", given)
    experiment = Experiment(policies, world, users * visits, tuple(range(seeds)))
    title = f"{users:,} users on {servers} servers"
    about = (
        "Every user with enough ratings in the file visits a local server, which offers items that the "
        "user rated in reality. Regret is counted in units of what each server reaches alone."
    )
    panel = Panel("advice", title, experiment)
    return Figure("advice", "gain", "Would federating pay?", about, (panel,), "visits per user")


@dataclass(frozen=True)
class Gain:
    """The regret of a way to serve, as a multiple of alone: mean and half of its 90 % interval."""

    policy: str
    ratio: float
    half: float | None

    def sentence(self) -> str:
        """What it means."""
        share, sure = abs(1.0 - self.ratio), ""
        if self.half is not None:
            sure = f" (ratio {self.ratio:.3f} ± {self.half:.3f})"
        settled = self.half is not None and share > self.half
        if share <= LITTLE:
            return f"{self.policy}: no gain and no loss worth the name against staying alone{sure}."
        word = "less" if self.ratio < 1.0 else "more"
        doubt = "" if settled else "; more seeds are needed to be sure"
        return f"{self.policy}: {100 * share:.0f} % {word} regret than staying alone{sure}{doubt}."


def interval(ratios: Floats) -> float | None:
    """Half the width of the 90 % interval of their mean; None for one seed."""
    if len(ratios) < 2:
        return None
    error = float(ratios.std(ddof=1)) / sqrt(len(ratios))
    return float(student.ppf(0.5 + CONFIDENCE / 2, len(ratios) - 1)) * error


def gains(regret: dict[str, Floats]) -> list[Gain]:
    """Every way to serve against `alone`, paired by seed."""
    found = []
    for policy, values in regret.items():
        if policy != ALONE:
            ratios = values / regret[ALONE]
            found.append(Gain(policy, float(ratios.mean()), interval(ratios)))
    return found
