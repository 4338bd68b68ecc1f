"""What would a policy have earned on logged feedback? Two estimates with confidence intervals.

*Replay* (Li, Chu, Langford, Wang 2011): walk through the log; where the policy would have shown what
was shown, the outcome is its outcome, otherwise the round is skipped. With a logging policy that is not
uniform, a fitting round is kept with probability proportional to 1/propensity, which makes what is
kept look as if logged uniformly. Kept rounds are all that the policy learns from.

*Self-normalised importance weighting* (Swaminathan, Joachims 2015): in the same walk, every fitting
round counts, weighted by 1/propensity. It wastes no fitting round. For a policy that learns it
estimates the mean, over the log's rounds, of the value of the policy as it then was.

Both intervals are asymptotic: fitting rounds must be many (some hundreds).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem, require
from fclub.core.types import Flags, Floats, Matrix, Vector
from fclub.environments.base import place
from fclub.environments.data.log_file import Log
from fclub.environments.world import HALF


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
