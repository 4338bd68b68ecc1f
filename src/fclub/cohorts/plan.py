"""What cohorts need of a period's plan, and a member's share of the noise."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from math import ceil, floor, isqrt, sqrt
from typing import NamedTuple

import msgspec
import numpy as np

from fclub.cohorts.masks import field, number
from fclub.cohorts.members import MOST_MEMBERS
from fclub.core.lattice import Whole
from fclub.errors import InvalidSetting, OutOfRange, TooFewMembers
from fclub.privacy.calibration import epsilon_of
from fclub.privacy.noise import LARGEST, NoiseSource, least_whole
from fclub.privacy.plan import Plan

LEAST_MEMBERS = 3
LEAST_HONEST = 2
FINENESS = 64
"""Lattice steps in the deviation of a share, at least: for the lemma of specification/integers.md."""
RANGE = 2**62
MOST_USERS = 2**22
"""Users of a member, for which sums have room."""
DELAY = 2
"""Seconds after which a Join leaves, so that it does not tell how long something took."""
TAIL = 12
"""Deviations of noise for which the range has room."""


class CohortPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A period's slots. Slot r begins at `times[r]`, in seconds since 1970.

    `steps[r]` is C_r/g_r, `deviations[r]` the whole number of lattice steps not below σ_r/g_r and
    `lattice[r]` is g_r. A member has at most `users` users. A Join leaves
    multiples of `delay` seconds after that. `terms` is the digest of the plan from which this was made.
    """

    federation: str
    period: int
    times: tuple[int, ...]
    steps: tuple[int, ...]
    deviations: tuple[int, ...]
    lattice: tuple[float, ...]
    entries: int
    users: int
    colluders: int
    cap: int
    window: int
    tolerance: int = 60
    delay: int = 2
    terms: str = ""

    def __post_init__(self) -> None:
        _check_plan(self)

    @cached_property
    def hash(self) -> bytes:
        numbers = (self.period, self.entries, self.users, self.colluders, self.cap, self.window)
        parts = [field(b"fclub-plan-1"), field(self.federation.encode())]
        parts += [number(value) for value in (*numbers, self.tolerance, self.delay, len(self.times))]
        for values in (self.times, self.steps, self.deviations):
            parts += [number(value) for value in values]
        parts += [struct.pack(">d", value) for value in self.lattice]
        parts.append(field(self.terms.encode()))
        return sha256(b"".join(parts)).digest()

    @property
    def end(self) -> int:
        return self.times[-1] + self.window

    def beat(self, slot: int, now: float) -> float:
        """A Join leaves at whole delays after t_r: how long users were added up does not show."""
        begins = float(self.times[slot])
        return begins + self.delay * (floor((now - begins) / self.delay) + 1) if self.delay else now

    def bound(self, slot: int) -> int:
        """No entry of a member's sum is larger."""
        return self.users * self.steps[slot]

    def latest_go(self, slot: int) -> float:
        """A quarter of the window is left for Go to arrive."""
        return self.times[slot] + 0.75 * self.window

    def gives_up(self, slot: int) -> float:
        """Members may send until the next slot begins, or for one more window after the last."""
        after = self.times[slot + 1 :]
        return after[0] if after else self.end + self.window


def _check_plan(plan: CohortPlan) -> None:
    def require(condition: bool, expected: str, got: object) -> None:
        if not condition:
            raise InvalidSetting(f"plan of secure sums: expected {expected}, got {got!r}", got)

    slots = len(plan.times)
    lengths = {len(plan.steps), len(plan.deviations), len(plan.lattice)}
    require(slots > 0 and lengths == {slots}, "a bound, a deviation and a step for every slot", lengths)
    for name in ("period", "tolerance", "delay"):
        require(0 <= getattr(plan, name) < 2**63, f"{name} of at least 0", getattr(plan, name))
    for name in ("entries", "users", "colluders", "cap", "window"):
        require(0 < getattr(plan, name) < 2**63, f"{name} above 0", getattr(plan, name))
    require(plan.delay < plan.window, "a delay below the window", plan.delay)
    require(all(0 <= time < 2**63 for time in plan.times), "times since 1970", plan.times)
    for one, other in pairwise(plan.times):
        require(one + plan.window <= other, "windows that do not overlap", (one, other))
    for steps, deviation in zip(plan.steps, plan.deviations, strict=True):
        require(0 < steps < 2**63, "a bound of whole lattice steps", steps)
        require(deviation <= LARGEST, "a deviation of at most 2^52", deviation)
        least = f"a deviation of at least {FINENESS} lattice steps times the root of the cap"
        require(deviation**2 >= FINENESS**2 * plan.cap, least, deviation)


def plan_from(plan: Plan, federation: str, users: int = MOST_USERS) -> CohortPlan:
    """The cohorts of a federation's plan; all slots have its bound and its deviation, rounded up.

    A lattice step is a part of C_r, which may follow from earlier releases: from the released model,
    whose bytes are in the context.
    """
    if not plan.secure:
        raise InvalidSetting("expected a plan with secure sums, got one with noise per server")
    slots, window = len(plan.times), floor(plan.window)
    return CohortPlan(
        federation=federation,
        period=floor(plan.start),
        times=tuple(ceil(time) for time in plan.begins),
        steps=(ceil(plan.bound),) * slots,
        deviations=(plan.deviation,) * slots,
        lattice=(1.0 / plan.steps,) * slots,
        entries=plan.entries,
        users=users,
        colluders=plan.colluders,
        cap=plan.cap,
        window=window,
        tolerance=ceil(plan.tolerance),
        delay=min(DELAY, window // 8),
        terms=plan.digest,
    )


class Share(NamedTuple):
    """What a member adds in a roster of `members`: one of `shares` parts, of this deviation."""

    members: int
    shares: int
    deviation: int


def colluding(organisations: Sequence[str], colluders: int) -> int:
    """c: members in this roster of the `colluders` organisations that have most members in it."""
    return sum(count for _, count in Counter(organisations).most_common(colluders))


def share_of(plan: CohortPlan, slot: int, organisations: Sequence[str]) -> Share:
    """The share of every member of a roster, counted from the roster itself."""
    members = len(organisations)
    if members > MOST_MEMBERS:
        raise OutOfRange(f"expected a roster of at most {MOST_MEMBERS:,} members, got {members:,}")
    needed = members_needed(plan, organisations)
    if members < needed:
        raise TooFewMembers(f"{members} of {needed} needed are present: nothing is sent in this slot")
    shares = min(plan.cap, members - colluding(organisations, plan.colluders))
    share = Share(members, shares, least_whole(plan.deviations[slot], shares))
    if largest_sum(plan, slot, share) >= RANGE:
        raise OutOfRange(
            f"sums of {members} members could leave 64 bits: expected bounds and noise below 2^62, got "
            f"{largest_sum(plan, slot, share)}; the plan needs fewer users a member or coarser steps"
        )
    return share


def members_needed(plan: CohortPlan, organisations: Sequence[str]) -> int:
    """Two must be left without the colluders; who is missing counts as of another organisation."""
    others = max(plan.colluders, colluding(organisations, plan.colluders))
    return max(LEAST_MEMBERS, others + LEAST_HONEST)


def largest_sum(plan: CohortPlan, slot: int, share: Share) -> int:
    """A sum beyond this is no sum of members that keep to the plan."""
    root = isqrt(share.members - 1) + 1
    return share.members * plan.bound(slot) + TAIL * share.deviation * root


def draw_share(source: NoiseSource, entries: int, share: Share) -> Whole:
    """Fresh noise, the same for every member whether or not it has users."""
    return source.integers(np.full(entries, float(share.deviation)))


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A slot in a member's books. One that is `presumed` may have been sent by a store that is gone."""

    period: int
    slot: int
    members: int
    shares: int
    deviation: int
    roster: bytes
    presumed: bool = False


def presumed_charge(plan: CohortPlan, slot: int) -> Charge:
    """The least noise that any roster would have had, together and alone."""
    deviation = least_whole(plan.deviations[slot], plan.cap)
    return Charge(plan.period, slot, 0, plan.cap, deviation, b"", presumed=True)


class Guarantee(NamedTuple):
    """ε at one δ, for adding or removing a person's data and for replacing them."""

    mu: float
    add_or_remove: float
    replacement: float


class Guarantees(NamedTuple):
    """Against the hub with C organisations, and against everybody else or without cryptography."""

    together: Guarantee
    alone: Guarantee


def guarantees(charges: Iterable[Charge], plans: Mapping[int, CohortPlan], delta: float) -> Guarantees:
    """What these slots have cost; the theorem's μ with the deviations that were drawn."""
    found = list(charges)

    def cost(shares: Sequence[int]) -> Guarantee:
        square = distance = 0.0
        for charge, count in zip(found, shares, strict=True):
            plan = plans[charge.period]
            variance = float(charge.deviation**2 * count)
            square += plan.steps[charge.slot] ** 2 / variance
            distance += plan.entries / (48.0 * variance)
        mu = sqrt(square)
        return Guarantee(mu, epsilon_of(mu, delta, distance), epsilon_of(2.0 * mu, delta, distance))

    return Guarantees(cost([charge.shares for charge in found]), cost([1] * len(found)))
