"""What a server of clusters tells: sums over what was released of the users of each cluster."""

from __future__ import annotations

import numpy as np

from fclub.core.statistics import Statistics, total_by_label
from fclub.core.types import Indices
from fclub.protocol.exchanges.releases import Releases
from fclub.protocol.messages import write_id, write_statistics
from fclub.protocol.plus.messages import News


def news_of(
    releases: Releases, labels: Indices, ids: list[int], before: dict[int, int]
) -> tuple[list[News], dict[int, int]]:
    """Sums of the clusters that have others than `before`, and released observations by id of all."""
    totals = total_by_label(releases.released, labels, len(ids))
    noise = np.bincount(labels, weights=releases.noise, minlength=len(ids))
    counts = releases.released.counts.astype(np.float64)
    squares = np.bincount(labels, weights=counts**2, minlength=len(ids))
    news, told = [], {}
    for c, number in enumerate(ids):
        if totals.counts[c] > 0:
            told[number] = int(totals.counts[c])
            if before.get(number) != told[number]:
                statistics = write_statistics(Statistics.of(totals, c))
                people = float(totals.counts[c] ** 2 / squares[c])
                news.append(News(write_id(number), statistics, float(noise[c]), people))
    return news, told
