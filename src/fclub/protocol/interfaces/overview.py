"""What servers show of themselves: their clusters, and what they wait for before they send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fclub.core.types import Counts, Indices

CLUSTER, TYPE = "cluster", "type"
"""Kinds of clusters: those that servers find, and types, which are the same on every server."""

OBSERVATIONS, VISITS_PER_USER, CHANGE, TIME, NOTHING = (
    "observations",
    "visits per user",
    "change",
    "time",
    "nothing",
)
"""What an `Outlook` counts. CHANGE: data that change an estimate; TIME: seconds since 1970; NOTHING: it
never sends."""

Member = tuple[int, int]
"""A local cluster as the global server knows it: (server, opaque id)."""


@dataclass(frozen=True)
class LocalOverview:
    """A cluster of a local server.

    Its estimate holds `own` and `others`' observations, shared by so many local clusters in all;
    `waiting` ones of its users are not known outside yet. `cluster` and `group`, its opaque id and its
    global cluster, are None while nobody has heard of it. `known` is the part of the first uncertainty
    about its taste that data have removed; of a type, `weight` is the share of users expected in it.
    """

    users: int
    own: int
    others: int
    shared_by: int
    cluster: int | None = None
    group: int | None = None
    waiting: int = 0
    kind: str = CLUSTER
    weight: float | None = None
    known: float | None = None


def global_clusters(clusters: Sequence[LocalOverview]) -> Indices:
    """Of local clusters; below 0 while the global server does not know them."""
    known = [-1 - k if one.group is None else one.group for k, one in enumerate(clusters)]
    return np.array(known, dtype=np.int64)


@dataclass(frozen=True)
class GlobalOverview:
    """A global cluster: observations that were released of it, and its local clusters.

    Local servers know it by `number`; `weight` and `known` are as in `LocalOverview`.
    """

    observations: int
    members: list[Member]
    number: int = 0
    kind: str = CLUSTER
    weight: float | None = None
    known: float | None = None


def part_known(covariance: Any, first: Any) -> float:
    """The part of the first uncertainty that is gone; a mixture may be more uncertain than that."""
    return max(0.0, 1.0 - float(np.trace(covariance) / np.trace(first)))


def global_overview(members: list[Member], group: Indices, counts: Counts) -> list[GlobalOverview]:
    """`group` and `counts` (of its groups) as the global server keeps them; none is without members."""
    found = [GlobalOverview(int(count), [], number) for number, count in enumerate(counts)]
    for member, k in zip(members, group, strict=True):
        found[int(k)].members.append(member)
    return [one for one in found if one.members]


@dataclass(frozen=True)
class Outlook:
    """When a local server sends next: once `now` has come to `at`, both in units of `what`.

    Without `at` nothing that is counted leads to it. `used` of `releases` are those that a limited
    number allows in a period. `alarm` is what is wrong with what others have told, for people.
    """

    what: str
    now: float = 0.0
    at: float | None = None
    used: int = 0
    releases: int | None = None
    alarm: str = ""
