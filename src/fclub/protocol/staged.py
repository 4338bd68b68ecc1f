"""What a local server has reported and not had a plan for yet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.statistics import Packed
from fclub.core.types import Floats, Indices


class Staged(NamedTuple):
    """A partition that was reported in a phase and waits for its plan."""

    phase: int
    ids: list[int]
    labels: Indices
    totals: Packed
    nodes: Floats
    noise: Floats

    @staticmethod
    def empty(phase: int, ids: list[int], dim: int, depth: int) -> Staged:
        labels: Indices = np.zeros(0, dtype=np.int64)
        nodes, noise = tree_arrays(0, dim, depth)
        return Staged(phase, ids, labels, Packed.zeros(0, dim), nodes, noise)


def tree_arrays(count: int, dim: int, depth: int) -> tuple[Floats, Floats]:
    """Nodes and present noise of one tree per cluster; empty where there is no tree."""
    side = dim + 1 if depth else 0
    return np.zeros((count, depth, side, side)), np.zeros((count, side, side))
