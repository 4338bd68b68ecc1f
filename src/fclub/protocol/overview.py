"""What servers show of their clusters to people; the same words for every family."""

from __future__ import annotations

from dataclasses import dataclass

from fclub.core.types import Counts, Indices

Member = tuple[int, int]
"""A local cluster as the global server knows it: (server, opaque id)."""


@dataclass(frozen=True)
class LocalOverview:
    """A cluster of a local server.

    Its estimate holds `own` and `others`' observations, shared by so many local clusters in all;
    `waiting` ones of its users are not known outside yet. `cluster` and `group`, its opaque id and its
    global cluster, are None while nobody has heard of it.
    """

    cluster: int | None
    group: int | None
    users: int
    own: int
    others: int
    waiting: int
    shared_by: int


@dataclass(frozen=True)
class GlobalOverview:
    """A global cluster: observations that were released of it, and its local clusters."""

    observations: int
    members: list[Member]


def global_overview(members: list[Member], group: Indices, counts: Counts) -> list[GlobalOverview]:
    """`group` and `counts` (of its groups) as the global server keeps them."""
    found = [GlobalOverview(int(count), []) for count in counts]
    for member, k in zip(members, group, strict=True):
        found[int(k)].members.append(member)
    return found
