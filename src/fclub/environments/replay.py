"""What would a policy have earned on logged feedback? Two estimates with confidence intervals.

*Replay* (Li, Chu, Langford, Wang 2011): walk through the log; where the policy would have shown what
was shown, the outcome is its outcome, otherwise the round is skipped. With a logging policy that is not
uniform, a fitting round is kept with probability proportional to 1/propensity, which makes what is
kept look as if logged uniformly. Kept rounds are all that the policy learns from.

*Self-normalised importance weighting* (Swaminathan, Joachims 2015): in the same walk, every fitting
round counts, weighted by 1/propensity. It wastes no fitting round. For a policy that learns it
estimates the mean, over the log's rounds, of the value of the policy as it then was.

Both intervals are asymptotic: fitting rounds must be many (some hundreds).

A log says what was shown to whom, how likely that was, and what came of it. Its layout is that of the
Open Bandit data: a CSV with one line per impression, and a CSV with the features of every item. All
items could have been shown in every round.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from math import nan, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem, require
from fclub.core.types import Flags, Floats, Indices, Matrix, Vector
from fclub.environments.base import place
from fclub.environments.data.ratings_file import numbered_lines
from fclub.environments.world import HALF
from fclub.errors import InvalidFile, InvalidRatings

ITEM = ("item_id", "item", "action")
REWARD = ("click", "reward")
PROPENSITY = ("propensity_score", "propensity", "pscore")
USER = ("user_id", "user")


@dataclass(frozen=True)
class Log:
    """Round t showed item `shown[t]` of `features` (M, d) to `users[t]` with probability
    `propensity[t]`, and `rewards[t]` followed."""

    users: Indices
    shown: Indices
    rewards: Floats
    propensity: Floats
    features: Floats

    def __post_init__(self) -> None:
        lengths = {len(self.users), len(self.shown), len(self.rewards), len(self.propensity)}
        if len(lengths) != 1 or not len(self.users):
            raise InvalidFile(f"a log needs equally long columns, got lengths {sorted(lengths)}")
        if self.shown.min() < 0 or self.shown.max() >= len(self.features):
            raise InvalidFile(f"a log may only show items 0 to {len(self.features) - 1}")
        if not ((self.propensity > 0.0) & (self.propensity <= 1.0)).all():
            raise InvalidFile("propensities must be above 0 and at most 1")

    def __len__(self) -> int:
        return len(self.users)


def _records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Numbered lines of a CSV with a header."""
    if not path.is_file():
        raise InvalidFile(f"there is no file {path}")
    reader = csv.DictReader(line for _, line in numbered_lines(path))
    for record in reader:
        if None in record or None in record.values():
            fields = len(reader.fieldnames or ())
            raise InvalidRatings(path, reader.line_num, f"expected {fields} fields")
        yield reader.line_num, record


def _field(path: Path, record: dict[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in record:
            return record[name]
    raise InvalidRatings(path, 1, f"no column called {' or '.join(names)}")


def _number(path: Path, line: int, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidRatings(path, line, f"{text!r} is not a number") from None
    if not least <= value <= most:
        raise InvalidRatings(path, line, f"{text} is not between {least:g} and {most:g}")
    return value


def _user(record: dict[str, str]) -> tuple[str, ...]:
    """The user's id; in anonymous logs, users with the same features are one."""
    for name in USER:
        if name in record:
            return (record[name],)
    return tuple(record[name] for name in sorted(record) if name.startswith("user_feature"))


def read_log(path: object, items: object, position: str | None = None) -> Log:
    """A log and its items' features; `position` keeps only impressions at that place of the page."""
    source = Path(str(path))
    numbers, features = read_item_features(items)
    people: dict[tuple[str, ...], int] = {}
    rows: list[tuple[int, int, float, float]] = []
    for line, record in _records(source):
        if position is not None and _field(source, record, ("position",)) != position:
            continue
        item = _field(source, record, ITEM)
        if item not in numbers:
            raise InvalidRatings(source, line, f"item {item!r} has no features in {items}")
        reward = _number(source, line, _field(source, record, REWARD), 0.0, 1.0)
        chance = _number(source, line, _field(source, record, PROPENSITY), 1e-12, 1.0)
        user = people.setdefault(_user(record), len(people))
        rows.append((user, numbers[item], reward, chance))
    if not rows:
        raise InvalidRatings(source, 1, "there is no impression")
    users, shown, rewards, chances = (np.array(column) for column in zip(*rows, strict=True))
    return Log(users, shown, rewards, chances, features)


def read_item_features(path: object) -> tuple[dict[str, int], Floats]:
    """Item id → row, and the rows: numbers standardised, words as indicators, beside a constant.

    The longest row is scaled to norm 1/√2 beside the constant 1/√2, so that all are in the unit ball.
    """
    source = Path(str(path))
    records = list(_records(source))
    if not records:
        raise InvalidRatings(source, 1, "there is no item")
    numbers: dict[str, int] = {}
    for line, record in records:
        item = _field(source, record, ITEM)
        if item in numbers:
            raise InvalidRatings(source, line, f"item {item!r} appears twice")
        numbers[item] = len(numbers)
    names = [name for name in records[0][1] if name and name not in ITEM]
    blocks = [_encode([record[name] for _, record in records]) for name in names]
    free = np.hstack([*blocks, np.zeros((len(numbers), 1))])[:, :-1]
    longest = float(np.linalg.norm(free, axis=1).max(initial=0.0))
    scaled = free * (HALF / longest) if longest > 0.0 else free
    return numbers, np.hstack([scaled, np.full((len(numbers), 1), HALF)])


def _encode(column: list[str]) -> Floats:
    try:
        values = np.array(column, dtype=np.float64)
    except ValueError:
        words = sorted(set(column))
        return np.array([[float(word == entry) for word in words] for entry in column])
    spread = values.std()
    centred: Floats = (values - values.mean()) / (spread if spread > 0.0 else 1.0)
    return centred[:, None]


class Learner(Protocol):
    """What replay needs of a policy."""

    def start(
        self, problem: Problem, server_of: object, seed: int | SeedSequence | None = None
    ) -> None: ...
    def recommend(self, user: int, items: Matrix) -> int: ...
    def update(self, user: int, x: Vector, reward: float) -> None: ...


@dataclass(frozen=True)
class Estimate:
    """Mean reward per round, and an interval that holds the truth with the stated confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ReplayResult:
    """`fitting` rounds showed what the policy would have shown; `kept` of them it learnt from."""

    rounds: int
    fitting: int
    kept: int
    replay: Estimate
    importance: Estimate
    logged: Estimate


def evaluate_replay(
    policy: Learner,
    log: Log,
    *,
    servers: int = 1,
    seed: int = 0,
    confidence: float = 0.95,
    learn: bool = True,
) -> ReplayResult:
    """Start the policy and walk it through the log, its users dealt out over the servers in order of
    appearance. `learn=False` evaluates a policy as it is: it was started before and does not learn."""
    require(0.0 < confidence < 1.0, "confidence must be between 0 and 1", confidence)
    acceptance, started = SeedSequence(seed).spawn(2)
    if learn:
        users = int(log.users.max()) + 1
        policy.start(_problem(log, users, servers), place(users, servers, "spread"), seed=started)
    fitting, kept = _walk(policy, log, np.random.default_rng(acceptance), learn)
    weights = np.where(fitting, 1.0 / log.propensity, 0.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    return ReplayResult(
        rounds=len(log),
        fitting=int(fitting.sum()),
        kept=int(kept.sum()),
        replay=_weighted_mean(log.rewards, kept.astype(np.float64), z),
        importance=_weighted_mean(log.rewards, weights, z),
        logged=_weighted_mean(log.rewards, np.ones(len(log)), z),
    )


def _problem(log: Log, users: int, servers: int) -> Problem:
    last = log.features[:, -1]
    constant = HALF if np.all(last == HALF) else None
    return Problem(users, servers, log.features.shape[1], constant)


def _walk(policy: Learner, log: Log, rng: np.random.Generator, learn: bool) -> tuple[Flags, Flags]:
    """Which rounds fit the policy's choice, and which of them are kept."""
    chance = log.propensity.min() / log.propensity
    accepted = rng.random(len(log)) < chance
    fitting = np.zeros(len(log), dtype=np.bool_)
    for t, (user, shown, reward) in enumerate(zip(log.users, log.shown, log.rewards, strict=True)):
        fitting[t] = policy.recommend(int(user), log.features) == shown
        if learn and fitting[t] and accepted[t]:
            policy.update(int(user), log.features[shown], float(reward))
    return fitting, fitting & accepted


def _weighted_mean(rewards: Floats, weights: Floats, z: float) -> Estimate:
    """Σwr/Σw with the delta method's standard error √(Σw²(r−v)²)/Σw; without a round, all of [0, 1].

    Equal rewards do not make it certain: the interval is never narrower than Wilson's for n equal
    outcomes, n being the effective number of rounds (Σw)²/Σw².
    """
    total = float(weights.sum())
    if total == 0.0:
        return Estimate(nan, 0.0, 1.0)
    value = float(weights @ rewards) / total
    error = z * sqrt(float(np.sum((weights * (rewards - value)) ** 2))) / total
    effective = total * total / float(weights @ weights)
    error = max(error, z * z / (effective + z * z))
    return Estimate(value, max(0.0, value - error), min(1.0, value + error))
