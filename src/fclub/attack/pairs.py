"""What can be promised live: every private policy with every unit and level that it takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.parameters import Parameter
from fclub.privacy.levels import EVENT, INTERACTIVE, LEVELS, PAIRS, USER
from fclub.protocol.families import FAMILIES
from fclub.service.settings import Model

DIM = 8
"""A run with many numbers tells more than many runs."""

HALF = float(np.sqrt(0.5))
SOON: dict[str, Parameter] = {"first_release": 2, "release_ratio": 1.1}
"""Servers look for what is due after 20, 30 and 40 visits; each stream has something to say then."""

SMALL: dict[str, Parameter] = {"few": 2, "types": 4, "slots": 6, "contribution": 0.05}
"""A bound so small that a user attains it with one visit, and slots enough that some are left when a
store has been put back, or a user was forgotten and has returned."""


class Pair(NamedTuple):
    """A policy and its promise."""

    policy: str
    unit: str
    level: str

    def __str__(self) -> str:
        return f"{self.policy} ({self.unit}, {self.level})"

    @property
    def printed(self) -> bool:
        """Whether it is the printed algorithm, whose trigger looks at raw data and at noise."""
        return FAMILIES[self.policy].switches["noise"] == "tree"

    @property
    def grouped(self) -> bool:
        """Whether raw data decide what is added up before it is sent."""
        found = FAMILIES[self.policy].switches["detection"] != "off"
        return self.level == "cdp" and found and not self.printed

    @property
    def own(self) -> bool:
        """Whether a user is served from its own data and from nothing else that was not released."""
        return self.unit == USER and self.level == INTERACTIVE.name

    @property
    def pace(self) -> tuple[int, int, int]:
        """Visits of each of three users after which there are one, two and three releases at least."""
        return (2, 3, 5) if self.unit == USER else (7, 11, 14)

    def model(self, epsilon: float, delta: float) -> Model:
        """A small federation with this promise."""
        budget: dict[str, Parameter] = {"epsilon": epsilon, "delta": delta}
        if self.printed:
            return Model(policy=self.policy, dim=DIM, expected_clusters=2, parameters=budget)
        chosen = {"unit": self.unit, "level": self.level} | (SMALL if self.unit == USER else SOON)
        known = {k: v for k, v in chosen.items() if k in FAMILIES[self.policy].defaults}
        return Model(
            policy=self.policy,
            dim=DIM,
            constant=HALF,
            expected_clusters=2,
            parameters=known | budget,
        )


def live_pairs() -> list[Pair]:
    """All of them, those that cover most first."""
    found = []
    for name, row in FAMILIES.items():
        if row.switches["noise"] == "none" or "plan" in row.defaults:
            continue  # without noise, or released by a plan only, which these federations have not
        if "unit" in row.defaults:
            found += [Pair(name, unit, level) for unit, level in PAIRS]
        elif "level" in row.defaults:
            found += [Pair(name, EVENT, level) for level in LEVELS]
        else:
            found.append(Pair(name, EVENT, "cdp"))
    order = list(LEVELS)
    return sorted(found, key=lambda pair: (pair.unit != USER, -order.index(pair.level), pair.policy))
