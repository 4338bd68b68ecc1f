"""What would a policy have earned on logged feedback? Three estimates with confidence intervals.

The log has rounds t = 1 … T. In round t, somebody (the context x_t: a user and an offer) was shown a_t
with the known probability p_t, and r_t followed. Contexts are drawn independently of each other and of
what was shown. The policy π walks through the log; π_t is the policy as it is before round t, and c is
the least probability with which the log shows anything.

*Replay* (Li, Chu, Langford, Wang 2011): where π_t would have shown a_t, the outcome is its outcome.
Such a round is kept with probability c/p_t, so that what is kept looks as if logged uniformly: whatever
π_t is, a round is kept with probability c, and kept rounds have the distribution of a live run. They
are all that the policy learns from, in all three estimates. The estimate is their mean reward.

*Self-normalised importance weighting* (Swaminathan, Joachims 2015): in the same walk, every fitting
round counts, weighted by 1/p_t.

*Doubly robust* (Dudík, Erhan, Langford, Li 2012, for policies that change): the mean over all t of

    D_t = q_t(x_t, π_t(x_t)) + 1[π_t(x_t) = a_t]/p_t · (r_t − q_t(x_t, a_t)),

where q_t is a model of rewards that has learned from rounds 1 … t−1 alone. Given these rounds, π_t and
q_t are fixed, so E[D_t] = V(π_t), the expected reward of showing π_t's choice to the next visitor,
whatever q_t is: the differences D_t − V(π_t) are a martingale's, and the interval is its central limit.
A good q_t makes it narrow: it takes the place of rounds that do not fit.

What the last two estimate is (1/T)·Σ V(π_t). After t−1 rounds the policy has learned from a number of
rounds that is binomial with chance c, and its state is distributed as after that number of rounds live.
So this is the mean reward of a live run over its first c·T rounds, each counted alike but for the last
ones, which the log may cut off. A policy that does not learn has one value, and this is it.

All intervals are asymptotic: fitting rounds must be many (some hundreds).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.random import SeedSequence

from fclub.config import Problem, require
from fclub.core.types import Flags, Floats, Indices, Matrix, Vector
from fclub.environments.base import place
from fclub.environments.logs import Log
from fclub.environments.reward_model import RewardModel


class ReplayPolicy(Protocol):
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
    doubly_robust: Estimate
    logged: Estimate


def evaluate_replay(
    policy: ReplayPolicy,
    log: Log,
    *,
    servers: int = 1,
    seed: int = 0,
    confidence: float = 0.95,
    learn: bool = True,
    least: float | None = None,
) -> ReplayResult:
    """Start the policy and walk it through the log, its users dealt out over the servers in order of
    appearance. `learn=False` evaluates a policy as it is: it was started before and does not learn.
    `least` is the least probability of anything on offer; unless given, that of what was shown.
    """
    require(0.0 < confidence < 1.0, "confidence must be between 0 and 1", confidence)
    least = float(log.propensity.min()) if least is None else least
    require(0.0 < least <= log.propensity.min(), "least must be that of every round", least)
    acceptance, started = SeedSequence(seed).spawn(2)
    if learn:
        users = int(log.users.max()) + 1
        policy.start(_problem(log, users, servers), place(users, servers, "spread"), seed=started)
    accepted = np.random.default_rng(acceptance).random(len(log)) < least / log.propensity
    chosen = walk(policy, log, accepted, learn)
    fitting = chosen == log.shown
    kept = fitting & accepted
    weights = np.where(fitting, 1.0 / log.propensity, 0.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    return ReplayResult(
        rounds=len(log),
        fitting=int(fitting.sum()),
        kept=int(kept.sum()),
        replay=_weighted_mean(log.rewards, kept.astype(np.float64), z),
        importance=_weighted_mean(log.rewards, weights, z),
        doubly_robust=_mean(doubly_robust(log, chosen), weights, z),
        logged=_weighted_mean(log.rewards, np.ones(len(log)), z),
    )


def _problem(log: Log, users: int, servers: int) -> Problem:
    """The last feature is a constant if all items share it."""
    last = float(log.features[0, -1])
    constant = last if last > 0.0 and np.all(log.features[:, -1] == last) else None
    count, dim = log.features.shape
    return Problem(users, servers, dim, constant, items=count)


def walk(policy: ReplayPolicy, log: Log, accepted: Flags, learn: bool = True) -> Indices:
    """What the policy would have shown in every round; it learns from accepted rounds that fit."""
    chosen = np.zeros(len(log), dtype=np.int64)
    for t, (user, shown, reward) in enumerate(zip(log.users, log.shown, log.rewards, strict=True)):
        rows = log.on_offer(t)
        items = log.features[rows]
        chosen[t] = rows[policy.recommend(int(user), items)]
        if learn and accepted[t] and chosen[t] == shown:
            policy.update(int(user), log.features[shown], float(reward))
    return chosen


def doubly_robust(log: Log, chosen: Indices) -> Floats:
    """D_t of every round, for what a policy has chosen in it."""
    model = RewardModel(int(log.users.max()) + 1, log.features.shape[1])
    terms = np.empty(len(log))
    rounds = zip(log.users.tolist(), log.shown, log.rewards.tolist(), log.propensity, strict=True)
    for t, (user, shown, reward, chance) in enumerate(rounds):
        theta, x = model.estimate(user), log.features[shown]
        terms[t] = min(max(theta @ log.features[chosen[t]], 0.0), 1.0)
        if chosen[t] == shown:
            terms[t] += (reward - terms[t]) / chance
        model.learn(user, x, reward)
    return terms


def _mean(terms: Floats, weights: Floats, z: float) -> Estimate:
    """The mean of independent terms; never surer than the weights of fitting rounds allow."""
    if not weights.any() or len(terms) < 2:
        return Estimate(nan, 0.0, 1.0)
    value = float(terms.mean())
    error = max(z * float(terms.std(ddof=1)) / sqrt(len(terms)), _least_error(weights, z))
    return Estimate(value, max(0.0, value - error), min(1.0, value + error))


def _least_error(weights: Floats, z: float) -> float:
    """Half of Wilson's interval for n equal outcomes, n being the effective number (Σw)²/Σw²."""
    total = float(weights.sum())
    effective = total * total / float(weights @ weights)
    return z * z / (effective + z * z)


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
    error = max(error, _least_error(weights, z))
    return Estimate(value, max(0.0, value - error), min(1.0, value + error))
