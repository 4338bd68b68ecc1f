"""Who comes when: users alike or by Zipf's law, some of them only in the second half of the rounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fclub.config import require
from fclub.core.compiling import compiled
from fclub.core.types import Flags, Floats, Indices
from fclub.errors import InvalidSetting


class Arrivals(NamedTuple):
    """The law of arrivals and where it stands.

    `is_newcomer` (n,) says whose first visit has to wait for the second half. `cumulated` (2, n) has
    the cumulated probabilities of users in both halves; it is empty where all users are alike all the
    time. `change` is the first round of the second half.
    """

    generator: np.random.Generator
    is_newcomer: Flags
    cumulated: Floats
    change: int
    played: Indices


@compiled
def next_user(arrivals: Arrivals, users: int) -> int:
    """One uniform number per visit; a user without probability is never drawn."""
    drawn = arrivals.generator.random()
    if arrivals.cumulated.shape[0] == 0:
        return int(min(drawn * users, users - 1))
    half = 1 if arrivals.played[0] >= arrivals.change else 0
    arrivals.played[0] += 1
    return int(np.searchsorted(arrivals.cumulated[half], drawn, side="right"))


def check_law(newcomers: float, users: int) -> None:
    """At least one user is there from the start."""
    most = 1.0 - 1.0 / users
    require(newcomers <= most, f"newcomers must be at most {most:g} here", newcomers)


def start_arrivals(
    visits: str,
    newcomers: float,
    users: int,
    rounds: int | None,
    generator: np.random.Generator,
    order: np.random.Generator,
) -> Arrivals:
    """The law, before its first visit; `order` decides who comes late and who comes often.

    Under Zipf's law the user at place r of a random order has a probability proportional to 1/r.
    """
    is_newcomer = np.zeros(users, dtype=np.bool_)
    is_newcomer[order.permutation(users)[: round(newcomers * users)]] = True
    rank = 1.0 + order.permutation(users)
    played, change = np.zeros(1, dtype=np.int64), 0
    if is_newcomer.any():
        if rounds is None:
            raise InvalidSetting("newcomers come in the second half: call expect_rounds before start")
        change = rounds // 2
    elif visits == "uniform":
        return Arrivals(generator, is_newcomer, np.zeros((0, 0)), change, played)
    weight = 1.0 / rank if visits == "zipf" else np.ones(users)
    cumulated = np.cumsum([np.where(is_newcomer, 0.0, weight), weight], axis=1)
    # Every row ends at exactly 1, so that a number below 1 always finds a user with probability.
    cumulated /= cumulated[:, -1:]
    return Arrivals(generator, is_newcomer, cumulated, change, played)
