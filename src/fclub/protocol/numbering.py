"""Opaque numbers for clusters, which change exactly when the membership does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fclub.core.types import Indices


def members_of(labels: Indices, clusters: int) -> list[bytes]:
    """The users of every cluster, in a form that can be compared."""
    order = np.argsort(labels, kind="stable")
    bounds = order.itemsize * np.searchsorted(labels[order], np.arange(clusters + 1))
    members = order.tobytes()
    return [members[start:stop] for start, stop in pairwise(bounds.tolist())]


def numbers_of(labels: Indices, numbers: list[int]) -> dict[bytes, int]:
    """The number of every cluster by its users."""
    return dict(zip(members_of(labels, len(numbers)), numbers, strict=True))


def number_clusters(
    labels: Indices, clusters: int, known: dict[bytes, int], following: int
) -> tuple[list[int], int]:
    """One number per cluster: the known one of its members, else the next; and what follows."""
    numbers = []
    for members in members_of(labels, clusters):
        number = known.get(members)
        if number is None:
            number, following = following, following + 1
        numbers.append(number)
    return numbers, following


class Numbering:
    """Remembers the numbers of the last partition; a set of users that is new gets a new number."""

    def __init__(self) -> None:
        self.next = 0
        self._numbers: dict[bytes, int] = {}

    def number(self, labels: Indices) -> list[int]:
        """One number per cluster 0, 1, … of the labels."""
        clusters = int(labels.max()) + 1
        numbers, self.next = number_clusters(labels, clusters, self._numbers, self.next)
        self._numbers = numbers_of(labels, numbers)
        return numbers

    def forget(self, row: int) -> None:
        """The clusters that this user was in get new numbers, though the user stays in them."""
        self._numbers = {
            members: number
            for members, number in self._numbers.items()
            if row not in np.frombuffer(members, dtype=np.int64)
        }

    def state(self) -> dict[str, Any]:
        return {"next": self.next, "numbers": [(m.hex(), n) for m, n in self._numbers.items()]}

    def restore(self, values: dict[str, Any]) -> None:
        self.next = int(values["next"])
        self._numbers = {bytes.fromhex(m): int(n) for m, n in values["numbers"]}
