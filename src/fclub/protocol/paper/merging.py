"""Local clusters of all servers as the global server merges them (Alg. 2, line 7)."""

from __future__ import annotations

import numpy as np

from fclub.core.clustering import merge
from fclub.core.models import estimate_all
from fclub.core.statistics import Statistics
from fclub.core.types import Floats, Indices
from fclub.protocol.overview import Member

Reported = list[tuple[int, Statistics]]
"""All clusters of a server by number."""


def latest_members(
    members: list[Member], released: list[Statistics], present: dict[int, Reported]
) -> tuple[list[Member], list[Statistics]]:
    """Members by server, with their report where there is one, else with their releases."""
    rows = [(m, st) for m, st in zip(members, released, strict=True) if m[0] not in present]
    for server, clusters in present.items():
        rows += [((server, cluster), statistics) for cluster, statistics in clusters]
    rows.sort(key=lambda row: row[0][0])
    return [member for member, _ in rows], [statistics for _, statistics in rows]


def merge_members(members: list[Member], released: list[Statistics], factor: float) -> Indices:
    """The group of each member: those of different servers with like estimates are together."""
    if not members:
        return np.zeros(0, dtype=np.int64)
    moment = np.array([statistics.moment for statistics in released])
    theta: Floats = np.empty_like(moment)
    estimate_all(np.array([statistics.gram for statistics in released]), moment, 0.0, theta)
    count = np.array([statistics.count for statistics in released], dtype=np.int64)
    server = np.array([server for server, _ in members], dtype=np.int64)
    return merge(theta, count, server, factor)


def partition(members: list[Member], group: Indices) -> frozenset[frozenset[Member]]:
    """Who is together with whom, whatever the groups are called."""
    parts: dict[int, set[Member]] = {}
    for member, k in zip(members, group, strict=True):
        parts.setdefault(int(k), set()).add(member)
    return frozenset(frozenset(part) for part in parts.values())
