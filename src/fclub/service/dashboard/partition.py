"""What changed between two partitions of local clusters, in the words that the page shows."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

Member = tuple[str, int]
"""A local cluster: its server and its id there."""

Partition = dict[Member, int]
"""The global cluster of every local cluster."""


class Change(NamedTuple):
    """`kind` is split, joined, merged or parted; `text` says what happened."""

    kind: str
    text: str


def compare(old: Partition, new: Partition) -> list[Change]:
    """Splits and joins inside servers, then merges and partings of clusters of different servers.

    A local cluster whose users change gets a new id, so the global server sees a split only as a
    change of numbers; local clusters are merged when they share a global cluster and did not before.
    """
    return _inside(old, new) + _between(_continued(old, new), new)


def _continued(old: Partition, new: Partition) -> Partition:
    """The only local cluster of a server stays the same to people, also under a new id."""
    before, after = Counter(server for server, _ in old), Counter(server for server, _ in new)
    alone = {member[0]: member for member in new if before[member[0]] == after[member[0]] == 1}
    return {alone.get(member[0], member): group for member, group in old.items()}


def _inside(old: Partition, new: Partition) -> list[Change]:
    before = Counter(server for server, _ in old)
    after = Counter(server for server, _ in new)
    changes = []
    for server in sorted(before.keys() | after.keys()):
        a, b = before[server], after[server]
        if a and b > a:
            changes.append(Change("split", f"{server}: {_count(a)} became {b}"))
        elif b < a:
            changes.append(Change("joined", f"{server}: {_count(a)} became {b}"))
    return changes


def _between(old: Partition, new: Partition) -> list[Change]:
    changes = []
    for group, members in _groups(new).items():
        together = {old.get(member, member) for member in members}
        if len(members) > 1 and len(together) > 1:
            servers = ", ".join(sorted({server for server, _ in members}))
            text = f"{_count(len(members))} of {servers} share global cluster {group}"
            changes.append(Change("merged", text))
    for members in _groups(old).values():
        kept = [member for member in members if member in new]
        apart = {new[member] for member in kept}
        if len(apart) > 1:
            text = f"{_count(len(kept))} went to {len(apart)} global clusters"
            changes.append(Change("parted", text))
    return changes


def _groups(partition: Partition) -> dict[int, list[Member]]:
    groups: dict[int, list[Member]] = {}
    for member, group in partition.items():
        groups.setdefault(group, []).append(member)
    return groups


def _count(number: int) -> str:
    return f"{number} local cluster{'' if number == 1 else 's'}"
