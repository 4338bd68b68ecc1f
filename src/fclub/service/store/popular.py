"""Which items the users of a local server like best, by what its store holds of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from fclub.errors import NotStored
from fclub.service.store.backup import read_only

STRENGTH = 10.0
"""Observations that the mean of all items weighs as much as."""

_SUMS = (
    "SELECT item, count(*), sum(reward) FROM ("
    "SELECT item, reward FROM decisions WHERE reward IS NOT NULL UNION ALL "
    "SELECT item, reward FROM past WHERE item IS NOT NULL) GROUP BY item"
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
