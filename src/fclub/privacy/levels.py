"""What is promised: three guarantee levels, each including the one before. Proofs in docs/privacy.md.

The unit says of what. With unit `event` neighbours are two histories that differ in the features and
reward of one observation of one user, whose existence, time and server are the same. So numbers of
observations are public. With unit `user` they differ in all observations of one user; public are the
times of visits and the numbers of users and visits of a server. What is protected from is everyone
outside the user's own local server: the global server, other local servers, and whoever reads the
messages. A local server is trusted with its own users' data, and its recommendations to its own users
are not part of what is protected.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fclub.errors import PrivacyError, UnknownName


class Flag(StrEnum):
    """Something that leaves a server, or shapes what leaves, and that no noise accounts for."""

    RAW_TRIGGER = "raw-trigger"
    """When a release happens depends on unreleased data (the determinant test, Eq. 5)."""

    RAW_PARTITION = "raw-partition"
    """Which users form a cluster, hence a stream, depends on unreleased data (Eq. 3)."""

    RAW_CHOICES = "raw-choices"
    """Items of rounds that will be released are chosen with the help of unreleased data."""


@dataclass(frozen=True)
class Level:
    """A promise and the flags with which it cannot be kept."""

    name: str
    protects: str
    given: str
    forbids: frozenset[Flag]

    def check(self, flags: frozenset[Flag]) -> None:
        """Refuse a configuration that this level's proof does not cover."""
        broken = sorted(flags & self.forbids)
        if broken:
            raise PrivacyError(f"level {self.name} does not allow {', '.join(broken)}")


CDP = Level(
    name="cdp",
    protects="the values that are released at times fixed without looking at their noise, and whatever "
    "others compute from them",
    given="the partition, the release times and all other observations, taken as fixed (the paper's "
    "Definition 1, a fixed sequence)",
    forbids=frozenset(),
)
TRANSCRIPT = Level(
    name="transcript",
    protects="the whole transcript: values, cluster ids, release times, merges and plans together",
    given="unit user: the data of all other users, taken as fixed; unit event: all other observations, "
    "taken as fixed",
    forbids=frozenset({Flag.RAW_TRIGGER, Flag.RAW_PARTITION}),
)
INTERACTIVE = Level(
    name="interactive",
    protects="the whole transcript, in the real interaction: later choices and rewards may react to it",
    given="arrivals and items on offer, but not what is shown and answered: neighbours are two worlds "
    "that differ, with unit user, in all data of one user, and with unit event in one round",
    forbids=frozenset({Flag.RAW_TRIGGER, Flag.RAW_PARTITION, Flag.RAW_CHOICES}),
)

LEVELS: dict[str, Level] = {level.name: level for level in (CDP, TRANSCRIPT, INTERACTIVE)}

EVENT, USER = "event", "user"
PAIRS = {(EVENT, "cdp"), (EVENT, "transcript"), (USER, "transcript"), (USER, "interactive")}
"""Units and levels that `cdp-fclub-plus` can promise together: the others have no proof, or no use."""


def check_pair(unit: str, level: str) -> None:
    """Refuse a promise that nothing here can keep."""
    if (unit, level) not in PAIRS:
        known = ", ".join(f"({unit}, {level})" for unit, level in sorted(PAIRS))
        raise PrivacyError(f"unit {unit} at level {level} is no promise; there are {known}")


def level_named(name: str) -> Level:
    if name not in LEVELS:
        raise UnknownName("guarantee level", name, LEVELS)
    return LEVELS[name]
