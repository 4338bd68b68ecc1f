"""Which items the users of a local server like best, by what its store holds of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fclub.core.types import Floats, Indices
from fclub.errors import NotStored
from fclub.service.store.backup import read_only

STRENGTH = 10.0
"""Observations that the mean of all items weighs as much as."""

_ALL = (
    "(SELECT item, row, reward FROM decisions WHERE reward IS NOT NULL UNION ALL "
    "SELECT item, row, reward FROM past WHERE item IS NOT NULL)"
)
_SUMS = f"SELECT item, count(*), sum(reward) FROM {_ALL} GROUP BY item"
_BY_CLUSTER = (
    f"SELECT item, place, count(*), sum(reward) FROM {_ALL} JOIN served USING (row) "
    "GROUP BY item, place"
)


class Rate(NamedTuple):
    """An item's mean reward, shrunk towards the mean of all, and the number of its rewards."""

    item: str
    rate: float
    observations: int


def popular_items(path: Path) -> list[Rate]:
    """All items with a reward, best first; of equals, the one with more rewards.

    The rate is (k·m + Σy) / (k + n) for an item with n rewards y: the mean of a posterior whose prior
    has the mean m of all rewards and weighs k of them. This reads all decisions that are kept.
    """
    try:
        with closing(read_only(path)) as store:
            sums = store.execute(_SUMS).fetchall()
    except sqlite3.Error as error:
        raise NotStored(f"{path} cannot be read: {error}") from None
    shown, earned = sum(n for _, n, _ in sums), sum(total for _, _, total in sums)
    mean = (earned + 1.0) / (shown + 2.0)
    rates = [Rate(item, (STRENGTH * mean + total) / (STRENGTH + n), n) for item, n, total in sums]
    return sorted(rates, key=lambda one: (-one.rate, -one.observations, one.item))


class Likes(NamedTuple):
    """Numbers and sums of rewards by cluster and by name, of items or of categories.

    The last row is everybody's.
    """

    names: list[str]
    counts: Floats
    sums: Floats

    def rates(self) -> Floats:
        """As in `popular_items`; those of a cluster are shrunk towards everybody's of that name."""
        counts, sums = self.counts[-1], self.sums[-1]
        mean = (sums.sum() + 1.0) / (counts.sum() + 2.0)
        everybody = (STRENGTH * mean + sums) / (STRENGTH + counts)
        by_cluster = (STRENGTH * everybody + self.sums[:-1]) / (STRENGTH + self.counts[:-1])
        return np.vstack([by_cluster, everybody])

    def best(self, rates: Floats, row: int, count: int) -> list[int]:
        """Places of what a cluster likes best, of all that it has rewarded."""
        there = np.flatnonzero(self.counts[row] > 0)
        order = np.lexsort((-self.counts[row, there], -rates[row, there]))
        best: list[int] = there[order[:count]].tolist()
        return best


def likes_by_cluster(path: Path, cluster_of: Indices, shown: list[int]) -> Likes:
    """What the users of some clusters like, and everybody, by the cluster of each row."""
    place_of = dict(zip(shown, range(len(shown)), strict=True))
    served = [(row, place_of.get(c, len(shown))) for row, c in enumerate(cluster_of.tolist())]
    try:
        with closing(read_only(path)) as store:
            store.execute("CREATE TEMP TABLE served (row INTEGER PRIMARY KEY, place INTEGER)")
            store.executemany("INSERT INTO served VALUES (?, ?)", served)
            found = store.execute(_BY_CLUSTER).fetchall()
    except sqlite3.Error as error:
        raise NotStored(f"{path} cannot be read: {error}") from None
    number = {item: k for k, item in enumerate(dict.fromkeys(item for item, *_ in found))}
    counts, sums = np.zeros((2, len(shown) + 1, len(number)))
    for item, place, n, total in found:
        for row in {place, len(shown)}:
            counts[row, number[item]] += n
            sums[row, number[item]] += total
    return Likes(list(number), counts, sums)
