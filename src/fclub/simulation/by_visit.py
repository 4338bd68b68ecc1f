"""How good is it for a new user? The mean regret of users' first, second, … fiftieth visit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.core.compiling import compiled
from fclub.core.types import Flags, Floats, Indices

MOST = 50
"""Later visits are not told apart."""

EVERYBODY, NEWCOMERS = 0, 1


class Tally(NamedTuple):
    """Visits of each user so far; regret and number of k-th visits, of everybody and of newcomers."""

    visits: Indices
    is_newcomer: Flags
    regret: Floats
    counts: Indices

    @staticmethod
    def start(is_newcomer: Flags) -> Tally:
        users = len(is_newcomer)
        counts = np.zeros((2, MOST), dtype=np.int64)
        return Tally(np.zeros(users, dtype=np.int64), is_newcomer, np.zeros((2, MOST)), counts)


@compiled
def note(tally: Tally, user: int, regret: float) -> None:
    """One more visit of this user."""
    k = tally.visits[user]
    tally.visits[user] = k + 1
    if k < MOST:
        tally.regret[EVERYBODY, k] += regret
        tally.counts[EVERYBODY, k] += 1
        if tally.is_newcomer[user]:
            tally.regret[NEWCOMERS, k] += regret
            tally.counts[NEWCOMERS, k] += 1


def means(tally: Tally, group: int) -> Floats:
    """The mean regret of the group's 1st, 2nd, … visit, up to the last that anybody made."""
    made = int(np.count_nonzero(tally.counts[group]))
    averages: Floats = tally.regret[group, :made] / tally.counts[group, :made]
    return averages
