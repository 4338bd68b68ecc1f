"""What a local server has reported and not had a plan for yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fclub.core.noise import advance_tree
from fclub.core.paper.federation import LocalClusters, renew_buffer
from fclub.core.paper.ucb import Rules
from fclub.core.statistics import Packed, Statistics
from fclub.core.types import Floats, Indices, Matrix

Draw = Callable[[], Matrix]
"""New noise for one node of a tree."""


class Staged(NamedTuple):
    """A partition that was reported in a phase and waits for its plan."""

    phase: int
    ids: list[int]
    labels: Indices
    totals: Packed
    nodes: Floats
    noise: Floats

    @staticmethod
    def of(phase: int, ids: list[int], labels: Indices, totals: Packed, depth: int) -> Staged:
        """One tree per cluster, without a leaf; none where there is no depth."""
        count, dim = totals.moment.shape
        side = dim + 1 if depth else 0
        nodes, noise = np.zeros((count, depth, side, side)), np.zeros((count, side, side))
        return Staged(phase, ids, labels, totals, nodes, noise)

    @staticmethod
    def empty(phase: int, ids: list[int], dim: int, depth: int) -> Staged:
        labels: Indices = np.zeros(0, dtype=np.int64)
        return Staged.of(phase, ids, labels, Packed.zeros(0, dim), depth)

    def release(self, c: int, draw: Draw, rules: Rules) -> Statistics:
        """Alg. 2, lines 4–5: what is reported of a cluster. The first leaf of its tree covers it."""
        total = Statistics.of(self.totals, c).shifted(rules.report_shift)
        if not self.nodes.shape[1]:
            return total
        noise, dim = self.noise[c], total.dim
        advance_tree(self.nodes[c], 1, draw(), noise)
        return total + Statistics(noise[:dim, :dim], noise[:dim, -1], 0)

    def start(
        self, starts: list[tuple[Statistics, int]], now: Packed, draw: Draw, rules: Rules
    ) -> LocalClusters:
        """Alg. 2, lines 8–16: clusters that start from global statistics shared by so many.

        Their buffers hold what was observed since the report; `now` is all that has been observed.
        """
        count, dim = self.totals.moment.shape
        clusters = LocalClusters.zeros(count, dim, self.nodes.shape[1])
        clusters.nodes[:], clusters.noise[:] = self.nodes, self.noise
        clusters.leaves[:] = 1
        for c, (start, sharing) in enumerate(starts):
            clusters.gram[c], clusters.moment[c] = start.gram, start.moment
            clusters.counts[c], clusters.sharing[c] = start.count, sharing
            renew_buffer(clusters, c, draw(), rules)
            clusters.buffer_gram[c] += now.gram[c] - self.totals.gram[c]
            clusters.buffer_moment[c] += now.moment[c] - self.totals.moment[c]
            clusters.buffer_count[c] = now.counts[c] - self.totals.counts[c]
        return clusters
