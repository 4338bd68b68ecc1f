"""What servers show of their clusters to people; the same words for every policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fclub.core.paper.federation import LocalClusters
from fclub.core.types import Counts, Indices

if TYPE_CHECKING:
    from fclub.protocol.mixture_local import MixtureLocal

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


def local_overview(
    clusters: LocalClusters, served_by: Indices, counts: Counts, ids: list[int], groups: list[int]
) -> list[LocalOverview]:
    """`counts` are the users'. Own data of an estimate: what its users have observed and uploaded."""
    rows = len(clusters.counts)
    users = np.bincount(served_by, minlength=rows)
    observed = np.bincount(served_by, weights=counts, minlength=rows)
    own = np.clip(observed - clusters.buffer_count, 0, clusters.counts)
    return [
        LocalOverview(
            cluster=ids[c] if ids else None,
            group=groups[c] if groups else None,
            users=int(users[c]),
            own=int(own[c]),
            others=int(clusters.counts[c] - own[c]),
            waiting=int(clusters.buffer_count[c]),
            shared_by=int(clusters.sharing[c]),
        )
        for c in range(rows)
    ]


def mixture_overview(server: MixtureLocal) -> list[LocalOverview]:
    """Clusters of the most probable partition."""
    labels = server.served_by
    members = [np.flatnonzero(labels == c) for c in range(labels.max(initial=-1) + 1)]
    return [_mixture_cluster(server, c, users) for c, users in enumerate(members)]


def _mixture_cluster(server: MixtureLocal, c: int, users: Indices) -> LocalOverview:
    """Where users are reported apart, a cluster has an id only if it has one user."""
    reported = users.tolist() if server.rules.separate else [c]
    ids = [server.ids[k] for k in reported if k < len(server.ids)]
    groups = [server.groups[number] for number in ids if number in server.groups]
    own, (others, sharing) = int(server.users.counts[users].sum()), server.joined[users[0]]
    return LocalOverview(
        cluster=ids[0] if len(ids) == 1 else None,
        group=groups[0] if len(set(groups)) == 1 else None,
        users=len(users),
        own=own,
        others=int(others),
        waiting=own - sum(server.told.get(number, 0) for number in ids),
        shared_by=int(sharing) + 1,
    )
