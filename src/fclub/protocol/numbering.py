"""Opaque numbers for clusters, which change exactly when the membership does."""

from __future__ import annotations

from itertools import pairwise

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
