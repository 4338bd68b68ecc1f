"""Visits and rewards as kernels: the readable and the compiled loop draw them with the same code.

User and item vectors are a direction of norm 1/√2 beside a constant 1/√2. All users come alike or by
Zipf's law, and some of them only in the second half of the rounds. Tastes may change on the way.
"""

from __future__ import annotations

from math import cos, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from fclub.config import require
from fclub.core.compiling import compiled, inner
from fclub.core.kernels import dot, set_vector
from fclub.core.types import Flags, Floats, Indices, Matrix, Vector
from fclub.errors import InvalidSetting


class Arrivals(NamedTuple):
    """The law of arrivals and where it stands.

    `is_newcomer` (n,) says whose first visit has to wait for the second half. `cumulated` (2, n) has
    the cumulated probabilities of users in both halves; it is empty where all users are alike all the
    time, and has one row where they take turns. `change` is the first round of the second half.
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
    if arrivals.cumulated.shape[0] == 1:
        arrivals.played[0] += 1
        return int((arrivals.played[0] - 1) % users)
    if arrivals.cumulated.shape[0] == 0:
        return int(min(drawn * users, users - 1))
    half = 1 if arrivals.played[0] >= arrivals.change else 0
    arrivals.played[0] += 1
    return int(np.searchsorted(arrivals.cumulated[half], drawn, side="right"))


def check_law(visits: str, newcomers: float, users: int) -> None:
    """At least one user is there from the start; who takes turns is there all the time."""
    if visits == "round-robin":
        require(newcomers == 0, "newcomers must be 0 with round-robin visits", newcomers)
    most = 1.0 - 1.0 / users
    require(newcomers <= most, f"newcomers must be at most {most:g} here", newcomers)


def start_arrivals(
    visits: str,
    newcomers: float,
    users: int,
    rounds: int | None,
    generator: np.random.Generator,
    order: np.random.Generator,
    leaving: Flags | None = None,
) -> Arrivals:
    """The law, before its first visit; `order` decides who comes late and who comes often.

    Under Zipf's law the user at place r of a random order has a probability proportional to 1/r.
    `leaving` says who comes in the first half only.
    """
    is_newcomer = np.zeros(users, dtype=np.bool_)
    is_newcomer[order.permutation(users)[: round(newcomers * users)]] = True
    rank = 1.0 + order.permutation(users)
    played, change = np.zeros(1, dtype=np.int64), 0
    gone = np.zeros(users, dtype=np.bool_) if leaving is None else leaving
    if is_newcomer.any() or gone.any():
        if rounds is None:
            raise InvalidSetting("the second half is another: call expect_rounds before start")
        change = rounds // 2
    elif visits != "zipf":
        kind = 1 if visits == "round-robin" else 0
        return Arrivals(generator, is_newcomer, np.zeros((kind, 0)), change, played)
    weight = 1.0 / rank if visits == "zipf" else np.ones(users)
    is_newcomer &= ~gone
    halves = [np.where(is_newcomer, 0.0, weight), np.where(gone, 0.0, weight)]
    cumulated = np.cumsum(halves, axis=1)
    # Every row ends at exactly 1, so that a number below 1 always finds a user with probability.
    cumulated /= cumulated[:, -1:]
    return Arrivals(generator, is_newcomer, cumulated, change, played)


class Changes(NamedTuple):
    """With the probability `rate` a visitor has another taste from then on, one of `tastes` (n, d).

    Where `later` is not empty, all users have these vectors from visit `change` on.
    """

    generator: np.random.Generator
    rate: float
    tastes: Floats
    later: Floats
    change: int
    played: Indices


def start_changes(
    rate: float,
    theta: Floats,
    generator: np.random.Generator,
    later: Floats | None = None,
    change: int = 0,
) -> Changes:
    """A user takes over what some user liked at the start, so that types stay what they are."""
    tastes = theta.copy() if rate > 0.0 else theta[:0]
    after = theta[:0].copy() if later is None else later
    return Changes(generator, rate, tastes, after, change, np.zeros(1, dtype=np.int64))


@inner
def _change(changes: Changes, theta: Floats, user: int) -> None:
    """Before a visit; without a rate nothing is drawn."""
    if changes.later.shape[0] > 0:
        if changes.played[0] == changes.change:
            for u in range(theta.shape[0]):
                set_vector(theta[u], changes.later[u])
        changes.played[0] += 1
    if changes.rate > 0.0 and changes.generator.random() < changes.rate:
        users = changes.tastes.shape[0]
        other = int(min(changes.generator.random() * users, users - 1))
        for i in range(theta.shape[1]):
            theta[user, i] = changes.tastes[other, i]


HALF = sqrt(0.5)
"""The constant last coordinate, and the norm of the rest: θᵀx is then in [0, 1]."""


def with_constant(rows: Floats, known: Any) -> Floats:
    """Rows scaled to norm 1/√2 beside the constant; a row that is not known keeps only that."""
    norms = np.linalg.norm(rows, axis=1)
    known = known & (norms > 0.0)
    vectors = np.zeros((rows.shape[0], rows.shape[1] + 1))
    vectors[known, :-1] = HALF * rows[known] / norms[known, None]
    vectors[:, -1] = HALF
    return vectors


DIRECTIONS, NON_NEGATIVE, CATALOGUE = 0, 1, 2
"""How items are drawn: a random direction beside a constant, a random non-negative direction, or
real items from a catalogue."""


class Catalogue(NamedTuple):
    """Real items: `features` (M, d), and for every user the items it may be offered.

    User u's candidates are positions starts[u] to starts[u+1] of `candidates` (item numbers) and
    `liked` (its reward for them). Drawing an offer shuffles them within the user's part: the first K
    are the offer.
    """

    features: Floats
    starts: Indices
    candidates: Indices
    liked: Floats


def no_catalogue() -> Catalogue:
    """What a world with random items has in its place."""
    none = np.zeros(0, dtype=np.int64)
    return Catalogue(np.zeros((0, 0)), none, none, np.zeros(0))


BERNOULLI = -1.0
"""As `noise`: rewards are 0 or 1."""


class Answers(NamedTuple):
    """How visitors answer: where their rewards are not those of a linear model and a fair coin.

    `noise` is the deviation of Gaussian rewards, or `BERNOULLI`. An expected reward is θᵀx plus
    misfit·cos(3π·direction·x), a bounded part that no linear model has. `honest[u]` is 1; 0 for users
    who answer at random; −1 for those who say the opposite. Regret is that of honest answers.
    """

    noise: float
    misfit: float
    direction: Vector
    honest: Indices


class World(NamedTuple):
    """What compiled code needs to play an environment: users' vectors and one generator per purpose."""

    kind: int
    theta: Floats
    arrivals: Arrivals
    changes: Changes
    items: np.random.Generator
    rewards: np.random.Generator
    catalogue: Catalogue
    answers: Answers


@compiled
def draw_user(world: World) -> int:
    """The next visitor, with the taste of the day."""
    user = next_user(world.arrivals, world.theta.shape[0])
    _change(world.changes, world.theta, user)
    return user


@inner
def _offer(world: World, user: int, items: Matrix) -> None:
    """K different candidates of this user: the first K steps of a shuffle."""
    shelf = world.catalogue
    first, end = shelf.starts[user], shelf.starts[user + 1]
    for k in range(items.shape[0]):
        here = first + k
        left = end - here
        other = here + int(min(world.items.random() * left, left - 1))
        item, liked = shelf.candidates[other], shelf.liked[other]
        shelf.candidates[other], shelf.liked[other] = shelf.candidates[here], shelf.liked[here]
        shelf.candidates[here], shelf.liked[here] = item, liked
        set_vector(items[k], shelf.features[item])


@compiled
def draw_items(world: World, user: int, items: Matrix) -> None:
    """Fill a (K, d) array with the items of one visit."""
    if world.kind == CATALOGUE:
        _offer(world, user, items)
        return
    count, d = items.shape
    free = d - 1 if world.kind == DIRECTIONS else d
    for k in range(count):
        square = 0.0
        for i in range(free):
            value = world.items.standard_normal()
            if world.kind == NON_NEGATIVE:
                value = abs(value)
            items[k, i] = value
            square += value * value
        scale = (HALF if world.kind == DIRECTIONS else 1.0) / sqrt(square)
        for i in range(free):
            items[k, i] *= scale
        if world.kind == DIRECTIONS:
            items[k, d - 1] = HALF


@inner
def _expected_reward(world: World, user: int, items: Matrix, index: int) -> float:
    """θᵀx and what is not linear, or whether the user liked the item."""
    if world.kind == CATALOGUE:
        return float(world.catalogue.liked[world.catalogue.starts[user] + index])
    expected = dot(world.theta[user], items[index])
    if world.answers.misfit > 0.0:
        wave = cos(3.0 * pi * dot(world.answers.direction, items[index]))
        expected = min(max(expected + world.answers.misfit * wave, 0.0), 1.0)
    return expected


@compiled
def regret_of(world: World, user: int, items: Matrix, index: int) -> float:
    """Expected reward of the best item minus that of the chosen one."""
    chosen = _expected_reward(world, user, items, index)
    best = chosen
    for k in range(items.shape[0]):
        best = max(best, _expected_reward(world, user, items, k))
    return best - chosen


@compiled
def draw_reward(world: World, user: int, items: Matrix, index: int) -> float:
    """A Bernoulli or Gaussian reward; one random number per visit, whatever was chosen."""
    expected = _expected_reward(world, user, items, index)
    if world.answers.honest[user] == 0:
        expected = 0.5
    elif world.answers.honest[user] < 0:
        expected = 1.0 - expected
    if world.answers.noise >= 0.0:
        return expected + world.answers.noise * world.rewards.standard_normal()
    return 1.0 if world.rewards.random() < expected else 0.0
