"""What can be promised live: every private policy with every unit and level that it takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.parameters import Parameter
from fclub.privacy.levels import EVENT, INTERACTIVE, LEVELS, PAIRS, USER
from fclub.privacy.plan import Plan, PlanLevel, make_plan
from fclub.protocol.families import FAMILIES
from fclub.service.settings import Model

DIM = 8
"""A run with many numbers tells more than many runs."""

HALF = float(np.sqrt(0.5))
SOON: dict[str, Parameter] = {"first_release": 2, "release_ratio": 1.1}
"""Servers look for what is due after 20, 30 and 40 visits; each stream has something to say then."""

SLOTS = tuple(0.01 * slot for slot in range(1, 9))
"""Expected visits so few that a user attains the bound with two, and slots enough that some are left
when a store has been put back, or a user was forgotten and has returned."""

START, VISIT = 1_000_000.0, 10.0
"""When a federation begins, by its own clock, and how long a visit takes; both in seconds."""

VISITS_PER_SLOT = 4


def plan_for(epsilon: float, delta: float, level: PlanLevel, secure: bool = False) -> Plan:
    """Slots by the clock, each after so many visits of anybody."""
    return make_plan(
        epsilon=epsilon,
        delta=delta,
        dim=DIM,
        users=1,
        members=3 if secure else 2,
        visits=SLOTS,
        level=level,
        secure=secure,
        start=START,
        seconds_per_visit=VISITS_PER_SLOT * VISIT / SLOTS[0],
        window=2.0 * VISIT,
        tolerance=0.0,
    )


class Pair(NamedTuple):
    """A policy and its promise; `secure` adds up in cohorts, so that only the sum is seen."""

    policy: str
    unit: str
    level: str
    secure: bool = False

    def __str__(self) -> str:
        return f"{self.policy} ({self.unit}, {self.means})"

    @property
    def means(self) -> str:
        """The level, and how releases are added up."""
        return f"{self.level}, secure sums" if self.secure else self.level

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
        chosen: dict[str, Parameter] = {"unit": self.unit, "level": self.level}
        if self.unit == USER:
            plan = plan_for(epsilon, delta, "interactive" if self.own else "transcript", self.secure)
            chosen["plan"] = plan.encode().decode()
        else:
            chosen |= SOON
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
        if row.switches["noise"] == "none":
            continue
        if "unit" in row.defaults:
            found += [Pair(name, unit, level) for unit, level in PAIRS]
            found += [Pair(name, unit, level, True) for unit, level in PAIRS if unit == USER]
        elif "level" in row.defaults:
            found += [Pair(name, EVENT, level) for level in LEVELS]
        else:
            found.append(Pair(name, EVENT, "cdp"))
    order = list(LEVELS)
    return sorted(found, key=lambda p: (p.unit != USER, -order.index(p.level), p.secure, p.policy))
