"""A plan: when a federation releases its users' population, with which bounds and how much noise.

A plan is made from what an operator expects, never from data, and fixes everything before the first
release: the times of the slots, the lattice, bounds and noise, who may collude. All members hold the
same small file and compare its hash. In slot r a user adds whole numbers of norm at most
√(steps² + count²); that bound and the noise are the same in all slots, in lattice steps, so R slots
cost √R times one. What a step is worth, C_r/steps, may follow from earlier releases.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from math import ceil, floor, inf, isfinite, sqrt
from pathlib import Path
from typing import Literal

import msgspec

from fclub.config import require
from fclub.core.population.contribution import COUNT_WEIGHT, release_length
from fclub.errors import InvalidSetting
from fclub.paths import write_atomically
from fclub.privacy.calibration import mu_of
from fclub.privacy.mechanisms import Slots
from fclub.privacy.noise import least_whole
from fclub.privacy.slots import plan_slots

FORMAT = 1
PlanLevel = Literal["transcript", "interactive"]
FIRST, GROWTH = 0.6, 1.45
"""Visits per user at the first slot, and their growth from slot to slot."""

MOST_SLOTS = 60
LONGEST_WINDOW = 3600.0
"""Seconds in which a slot's releases arrive; half the time between two slots if that is less."""

FEWEST = 3
"""Members of a secure sum: of two each would know the other's part."""

ALONE = 8.0
"""ε that a member's own share of noise keeps, or the plan's if that is more."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all members of a federation agree on for one period.

    `start` is a time in seconds since 1970 (0 in a simulation, whose clock is the number of visits);
    slot r is due `times[r]` seconds later, or after users × visits[r] visits of a simulation, when a
    user is expected to have made `visits[r]` visits beside `past` ones before the start. `users` is
    used for that and nowhere else. A slot can be begun for `window` seconds, in which its releases have
    to arrive as well; clocks differ by at most `tolerance` seconds.
    """

    format: int = FORMAT
    start: float
    times: tuple[float, ...]
    visits: tuple[float, ...]
    past: float
    users: int
    dim: int
    epsilon: float
    delta: float
    mu: float
    steps: int
    count: int
    level: PlanLevel
    secure: bool
    members: int
    colluders: int
    epsilon_alone: float
    window: float
    tolerance: float

    @property
    def begins(self) -> tuple[float, ...]:
        """Seconds since 1970 at which slots are due."""
        return tuple(self.start + time for time in self.times)

    @property
    def ends(self) -> tuple[float, ...]:
        """Seconds since 1970 at which the global server closes them."""
        return tuple(time + self.window for time in self.begins)

    @property
    def releases(self) -> int:
        return len(self.visits)

    @property
    def entries(self) -> int:
        return release_length(self.dim)

    @property
    def bound(self) -> float:
        """The norm of one user's contribution, in lattice steps."""
        return sqrt(self.steps**2 + self.count**2)

    @property
    def deviation(self) -> int:
        """Noise that the guarantee needs in a release, in whole lattice steps."""
        return ceil(self.bound * sqrt(self.releases) / self.mu)

    def honest(self, members: int) -> int:
        """h: shares of noise that count among so many members.

        Without secure sums every server's release stands alone: 1. With them at most `colluders` may
        know their own shares, and no more than `cap` are counted, so that a member's own share keeps
        `epsilon_alone` even if everybody else colludes.
        """
        return max(1, min(self.cap, members - self.colluders)) if self.secure else 1

    @property
    def cap(self) -> int:
        """⌊(μ_alone/μ)²⌋."""
        return max(1, floor((mu_of(self.epsilon_alone, self.delta) / self.mu) ** 2))

    def share(self, members: int) -> int:
        """Deviation of the noise that one member adds, in lattice steps."""
        return least_whole(self.deviation, self.honest(members))

    def total(self, members: int) -> float:
        """Deviation of the noise in the sum over so many members, in lattice steps."""
        return self.share(members) * sqrt(members)

    @property
    def known(self) -> float:
        """k = n/(1 + pt²/(nN²)), t the noise in the sum over all members, n the plan's users.

        The mean of so many contributions of norm N, without noise, is as exact as that of all with it.
        """
        noise = self.entries * (self.total(self.members) / self.steps) ** 2
        return self.users / (1.0 + noise / self.users)

    @property
    def mechanism(self) -> Slots:
        """What the ledger accounts for, in units of the largest contribution."""
        spread = self.deviation / self.bound
        return Slots(self.releases, spread, self.entries, 1.0 / self.bound)

    @property
    def digest(self) -> str:
        """What members compare."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def write(self, path: Path) -> None:
        with write_atomically(path) as file:
            file.write(self.encode())


def read_plan(path: Path) -> Plan:
    """A plan of a file; one that cannot be kept is refused."""
    try:
        return decode_plan(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise InvalidSetting(
            f"there is no plan at {path}; `fclub plan --out FILE` writes one"
        ) from error


def decode_plan(data: bytes | str, where: str = "this") -> Plan:
    """The same for what a file holds."""
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except msgspec.DecodeError as error:
        raise InvalidSetting(f"{where} is no plan: {error}") from error
    check_plan(plan)
    return plan


def check_plan(plan: Plan) -> None:
    """Refuse numbers that no plan of `make_plan` has."""
    require(plan.format == FORMAT, f"expected a plan of format {FORMAT}", plan.format)
    same = 1 <= plan.releases <= MOST_SLOTS and len(plan.times) == plan.releases
    require(same, f"a plan has 1 to {MOST_SLOTS} slots, each with a time", plan.times)
    for name in ("times", "visits"):
        numbers = getattr(plan, name)
        rising = all(a < b for a, b in pairwise(numbers))
        require(rising and all(map(isfinite, numbers)), f"{name} of slots must rise", numbers)
    require(plan.times[0] >= 0.0 and plan.visits[0] > 0.0, "slots begin after the start", plan.times)
    gap = min((b - a for a, b in pairwise(plan.times)), default=inf)
    ends = 0.0 < plan.window <= 0.5 * gap and plan.tolerance >= 0.0
    require(ends, f"a window is above 0, at most half the {gap:g} s between slots", plan.window)
    require(plan.past >= 0.0, "past visits must be at least 0", plan.past)
    require(plan.users >= 1 and plan.dim >= 1, "a plan needs users and features", plan.users)
    made = make_plan(
        epsilon=plan.epsilon,
        delta=plan.delta,
        dim=plan.dim,
        users=plan.users,
        members=plan.members,
        visits=plan.visits,
        level=plan.level,
        secure=plan.secure,
        colluders=plan.colluders,
        epsilon_alone=plan.epsilon_alone,
    )
    numbers = plan.mu, plan.steps, plan.count
    expected = made.mu, made.steps, made.count
    require(numbers == expected, f"noise does not keep the guarantee: expected {expected}", numbers)


def slot_visits(horizon: float, first: float = FIRST, growth: float = GROWTH) -> tuple[float, ...]:
    """Visits per user at the slots of a period in which a user is expected to make `horizon` visits.

    The last slot that is worth its noise has visits after it to serve: none is later than 0.9 of all.
    """
    require(horizon > 0.0 and isfinite(horizon), "expected visits must be above 0", horizon)
    visits = [min(first, 0.9 * horizon)]
    while visits[-1] * growth <= 0.9 * horizon and len(visits) < MOST_SLOTS:
        visits.append(visits[-1] * growth)
    return tuple(visits)


def make_plan(
    *,
    epsilon: float,
    delta: float,
    dim: int,
    users: int,
    members: int,
    visits: tuple[float, ...],
    level: PlanLevel = "transcript",
    secure: bool = True,
    colluders: int | None = None,
    epsilon_alone: float | None = None,
    start: float = 0.0,
    seconds_per_visit: float = 1.0,
    past: float = 0.0,
    window: float = LONGEST_WINDOW,
    tolerance: float = 60.0,
) -> Plan:
    """The noise with which slots at so many `visits` per user together are (ε, δ)-private.

    A share of noise is a discrete Gaussian by itself, and of them there are as many as members.
    """
    colluders = max(1, (members - 1) // 3) if colluders is None else colluders
    epsilon_alone = max(ALONE, epsilon) if epsilon_alone is None else epsilon_alone
    require(members >= 1, "a federation needs members", members)
    if secure:
        least = f"secure sums need {FEWEST} members, and two more than collude"
        require(members >= max(FEWEST, colluders + 2), least, members)
        require(colluders >= 1, "at least one member may collude", colluders)
        floor = "epsilon_alone must be at least epsilon"
        require(epsilon_alone >= epsilon, f"{floor} {epsilon:g}", epsilon_alone)
    lattice = plan_slots(epsilon, delta, release_length(dim), len(visits))
    times = tuple(seconds_per_visit * number for number in visits)
    gap = min((b - a for a, b in pairwise(times)), default=inf)
    return Plan(
        start=start,
        times=times,
        visits=visits,
        past=past,
        users=users,
        dim=dim,
        epsilon=epsilon,
        delta=delta,
        mu=lattice.mu,
        steps=lattice.steps,
        count=int(COUNT_WEIGHT * lattice.steps),
        level=level,
        secure=secure,
        members=members,
        colluders=colluders if secure else 0,
        epsilon_alone=epsilon_alone,
        window=min(window, 0.5 * gap),
        tolerance=tolerance,
    )
