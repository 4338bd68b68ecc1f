"""The paper's synthetic environment."""

from __future__ import annotations

from math import asin
from typing import Annotated, ClassVar, Literal

import numpy as np

from fclub.config import Dim, Problem, RewardLimits, Servers, Users, require
from fclub.core.types import Floats
from fclub.environments.base import (
    Items,
    LinearEnvironment,
    Newcomers,
    Placement,
    Visits,
    place,
)
from fclub.environments.world import BERNOULLI, DIRECTIONS, HALF, NON_NEGATIVE, Answers
from fclub.parameters import Parameter, checked, meaning


class Synthetic(LinearEnvironment):
    """n users in m clusters on L servers; d features, K items a visit.

    `kind="authors"`: θ and x are a random direction of norm 1/√2 beside a constant 1/√2, so that θᵀx is
    in [0, 1]. `kind="orthogonal"`: unit θ with disjoint non-negative supports (gap √2), unit
    non-negative x. Whatever makes a world harder is a parameter, and they can be combined.
    """

    name: ClassVar[str] = "synthetic"

    @checked
    def __init__(
        self,
        users: Users = 40,
        clusters: Annotated[int, meaning("number of true clusters", least=1)] = 4,
        servers: Servers = 5,
        dim: Dim = 10,
        items: Items = 10,
        placement: Placement = "blocks",
        kind: Annotated[
            Literal["authors", "orthogonal"],
            meaning("vectors as in the published code, or clusters that share no feature"),
        ] = "authors",
        spread: Annotated[
            float, meaning("η: the most that two users of a cluster differ by", least=0, most=2)
        ] = 0.0,
        visits: Visits = "uniform",
        newcomers: Newcomers = 0.0,
        drift: Annotated[
            float,
            meaning(
                "probability that a visitor has some other user's taste from then on", least=0, below=1
            ),
        ] = 0.0,
        change: Annotated[
            Literal["none", "drift", "split", "merge"],
            meaning(
                "what happens halfway: nothing; every cluster has a new taste; half of each cluster's "
                "users, at random, have one; every second cluster takes over that of the one before"
            ),
        ] = "none",
        corrupted: Annotated[
            float, meaning("share of users who do not answer honestly", least=0, below=1)
        ] = 0.0,
        corruption: Annotated[
            Literal["random", "inverted"],
            meaning("what corrupted users answer: a fair coin, or the opposite of what they like"),
        ] = "random",
        noise: Annotated[
            float,
            meaning("deviation of Gaussian, unbounded rewards; null: rewards are 0 or 1", least=0),
        ]
        | None = None,
        misfit: Annotated[
            float,
            meaning(
                "the most that an expected reward differs from θᵀx: m·cos(3π·aᵀx)", least=0, most=0.5
            ),
        ] = 0.0,
        delay: Annotated[
            int, meaning("later visits before a reward is known", "visits", least=0, most=100_000)
        ] = 0,
        dropout: Annotated[
            float, meaning("share of servers without visits in the second half", least=0, below=1)
        ] = 0.0,
    ) -> None:
        constant = HALF if kind == "authors" else None
        limits: RewardLimits = (0.0, 1.0) if noise is None else "unbounded"
        self.problem = Problem(users, servers, dim, constant, limits)
        staying = servers - round(dropout * servers)
        require(staying >= 1, "dropout must leave a server", dropout)
        require(clusters <= users, f"clusters must be at most the {users} users", clusters)
        require(kind == "authors" or clusters <= dim, "orthogonal needs clusters ≤ dim", clusters)
        require(kind != "authors" or dim >= 2, "authors' vectors need dim ≥ 2", dim)
        self.clusters, self.items, self.kind, self.spread = clusters, items, kind, spread
        self.placement = placement
        self.labels = np.arange(users) * clusters // users
        self.server_of = place(users, servers, placement)
        self._set_arrivals(visits, newcomers)
        self.drift, self.change, self.delay, self.dropout = drift, change, delay, dropout
        self.corrupted, self.corruption, self.noise, self.misfit = corrupted, corruption, noise, misfit

    def get_params(self) -> dict[str, Parameter]:
        return {
            "users": self.problem.users,
            "clusters": self.clusters,
            "servers": self.problem.servers,
            "dim": self.problem.dim,
            "items": self.items,
            "placement": self.placement,
            "kind": self.kind,
            "spread": self.spread,
            "visits": self.visits,
            "newcomers": self.newcomers,
            "drift": self.drift,
            "change": self.change,
            "corrupted": self.corrupted,
            "corruption": self.corruption,
            "noise": self.noise,
            "misfit": self.misfit,
            "delay": self.delay,
            "dropout": self.dropout,
        }

    @property
    def knows_clusters(self) -> bool:
        """Who is in which is known at the start, and always where nobody moves."""
        return self.drift == 0.0 and self.change == "none"

    @property
    def vectors(self) -> Floats | None:
        """None where rewards are not θᵀx."""
        return None if self.misfit > 0.0 else self.theta

    def _later(self, theta: Floats, rng: np.random.Generator) -> Floats | None:
        if self.change == "none":
            return None
        if self.change == "merge":
            first = np.searchsorted(self.labels, np.arange(self.clusters))
            joined = self.labels - self.labels % 2
            return np.where((self.labels % 2 == 1)[:, None], theta[first[joined]], theta)
        new = self._draw_theta(rng)
        if self.change == "split":
            for label in range(self.clusters):
                members = rng.permutation(np.flatnonzero(self.labels == label))
                staying = members[: (len(members) + 1) // 2]
                new[staying] = theta[staying]
        return new

    def _answers(self, rng: np.random.Generator) -> Answers:
        users, dim = self.problem.users, self.problem.dim
        honest = np.ones(users, dtype=np.int64)
        some = rng.permutation(users)[: round(self.corrupted * users)]
        honest[some] = 0 if self.corruption == "random" else -1
        noise = BERNOULLI if self.noise is None else self.noise
        return Answers(noise, self.misfit, _unit(rng.standard_normal(dim)), honest)

    @property
    def _kind(self) -> int:
        return DIRECTIONS if self.kind == "authors" else NON_NEGATIVE

    def _draw_theta(self, rng: np.random.Generator) -> Floats:
        n, m, d = self.problem.users, self.clusters, self.problem.dim
        theta = np.zeros((n, d))
        if self.kind == "authors":
            centres = _unit(rng.standard_normal((m, d - 1)))
            theta[:, :-1] = HALF * centres[self.labels]
            if self.spread > 0.0:
                towards = _unit(rng.standard_normal((n, d - 1)))
                theta[:, :-1] = HALF * _turn(centres[self.labels], towards, self.spread / HALF)
            theta[:, -1] = HALF
        else:
            support = np.arange(d) * m // d == np.arange(m)[:, None]
            centres = _unit(np.abs(rng.standard_normal((m, d))) * support)
            towards = _unit(np.abs(rng.standard_normal((n, d))) * support[self.labels])
            theta = _turn(centres[self.labels], towards, self.spread)
        return theta


def _unit(rows: Floats) -> Floats:
    scaled: Floats = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


def _turn(centres: Floats, towards: Floats, spread: float) -> Floats:
    """Unit vectors turned towards others, row by row, each by a chord of at most spread/2."""
    cosine = np.clip((centres * towards).sum(axis=1), -1.0, 1.0)
    tangent = towards - cosine[:, None] * centres
    length = np.linalg.norm(tangent, axis=1)
    angle = np.minimum(2.0 * asin(min(1.0, spread / 4.0)), np.arccos(cosine))
    angle[length < 1e-12] = 0.0
    across = np.sin(angle) / np.maximum(length, 1e-12)
    turned: Floats = np.cos(angle)[:, None] * centres + across[:, None] * tangent
    return turned
