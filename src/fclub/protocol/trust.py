"""What a server refuses to believe, checked before anything is changed.

An honest message holds the outer products of `count` feature vectors of norm at most 1, the shifts and
the noise of the mechanism. The allowance for noise is eight standard deviations, which an honest server
exceeds less than once in 10¹⁴ messages. Asymmetry, a wrong dimension and numbers that are not finite
are refused where bytes become statistics. Each family checks its own messages with what is here.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isnan, sqrt

import numpy as np

from fclub.core.kernels import largest_entry, log_determinant, trace
from fclub.core.lattice import GRID, is_whole
from fclub.core.statistics import Statistics
from fclub.errors import InvalidMessage

MAX_COUNT = 10**9
MAX_CLUSTERS = 100_000
DEVIATIONS = 8.0
ROUNDING = 1e-6


def check_named(clusters: Collection[int], kind: str) -> None:
    """The clusters that a message of this kind names."""
    if len(clusters) > MAX_CLUSTERS:
        raise InvalidMessage(f"a {kind} of {len(clusters)} clusters")
    if len(set(clusters)) != len(clusters):
        raise InvalidMessage(f"a {kind} names a cluster twice")


def check_statistics(statistics: Statistics, shift: float, std: float) -> None:
    """Count, entries, trace and moment of observations from the unit ball, with rewards in [0, 1]."""
    count, d = statistics.count, statistics.dim
    if not 0 <= count <= MAX_COUNT:
        raise InvalidMessage(f"statistics count {count} observations")
    if std > 0.0 and not (is_whole(statistics.gram) and is_whole(statistics.moment)):
        raise InvalidMessage("released statistics that are not on the lattice")
    noise = DEVIATIONS * std * sqrt(2.0 * d)
    # On the grid a vector may be longer than 1 by √d·GRID/2.
    slack = (ROUNDING + 1.01 * sqrt(d) * GRID) * (1.0 + count)
    if largest_entry(statistics.gram) > count + shift + noise + slack:
        raise InvalidMessage(f"an entry beyond its {count} observations")
    if largest_entry(statistics.moment.reshape(1, -1)) > count + noise + slack:
        raise InvalidMessage(f"a moment beyond its {count} observations")
    excess = trace(statistics.gram) - d * shift
    if not -noise - slack <= excess <= count + noise + slack:
        raise InvalidMessage(f"a trace of {excess:.6g} from {count} observations")
    if std == 0.0 and isnan(log_determinant(statistics.gram + slack * np.eye(d))):
        raise InvalidMessage("exact statistics are indefinite")
