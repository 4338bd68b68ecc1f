"""What is fixed before the first round: the problem, the protocol's constants, the privacy budget.

All three are frozen and check their ranges once, when they are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fclub.errors import InvalidSetting

Parameter = float | int | str | bool | None
"""A value that a policy or an environment can be given by name."""


def require(condition: bool, message: str, value: object) -> None:
    """Raise `InvalidSetting` unless the condition holds."""
    if not condition:
        raise InvalidSetting(f"{message}, got {value!r}", value)


def _require_whole(name: str, value: object, least: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= least, f"{name} must be a whole number of at least {least}", value)  # type: ignore[operator]


def _require_finite(name: str, value: float, least: float, strict: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    bound = "above" if strict else "at least"
    require(
        number and (value > least if strict else value >= least),
        f"{name} must be a finite number {bound} {least:g}",
        value,
    )


@dataclass(frozen=True)
class Problem:
    """What a policy may know about its world.

    `constant` is the value of the last feature where every item has the same one there, else None:
    only such a domain allows centred rewards (docs/privacy.md).
    """

    users: int
    servers: int
    dim: int
    constant: float | None = None

    def __post_init__(self) -> None:
        _require_whole("users", self.users, 1)
        _require_whole("servers", self.servers, 1)
        _require_whole("dim", self.dim, 1)
        require(
            self.servers <= self.users,
            f"servers must be at most the number of users ({self.users})",
            self.servers,
        )
        if self.constant is not None:
            _require_finite("constant", self.constant, 0.0, strict=True)
            require(self.constant <= 1.0, "constant must be at most 1", self.constant)


@dataclass(frozen=True)
class Protocol:
    """Constants of Algorithms 1 to 4.

    `deletion` is α₁ (Eq. 3), `merging` α₂ (Eq. 4), `upload_ratio` U (Eq. 5), `download_ratio` D
    (Eq. 6), `ridge` λ, `alpha` the failure probability of all confidence sets together.
    `exploration` scales β; 1 is the theory's value. `cluster_bound` is an upper bound of the number
    of local clusters of the whole federation (the paper's mL); None means the number of users.
    """

    upload_ratio: float = 1.01
    download_ratio: float = 1.01
    deletion: float = 1.5
    merging: float = 2.0
    ridge: float = 1.0
    sigma_0: float = 0.5
    alpha: float = 0.01
    exploration: float = 1.0
    cluster_bound: int | None = None

    def __post_init__(self) -> None:
        _require_finite("upload_ratio", self.upload_ratio, 1.0)
        _require_finite("download_ratio", self.download_ratio, 1.0)
        for name in ("deletion", "merging"):
            value = getattr(self, name)
            require(not math.isnan(value) and value >= 0, f"{name} must be at least 0", value)
        _require_finite("ridge", self.ridge, 0.0, strict=True)
        _require_finite("sigma_0", self.sigma_0, 0.0, strict=True)
        _require_finite("alpha", self.alpha, 0.0, strict=True)
        require(self.alpha < 1, "alpha must be below 1", self.alpha)
        _require_finite("exploration", self.exploration, 0.0)
        if self.cluster_bound is not None:
            _require_whole("cluster_bound", self.cluster_bound, 1)


@dataclass(frozen=True)
class Privacy:
    """The promised budget (ε, δ), and the horizon T for which the printed tree is provisioned."""

    epsilon: float = 1.0
    delta: float = 0.1
    horizon: int = 100_000

    def __post_init__(self) -> None:
        _require_finite("epsilon", self.epsilon, 0.0, strict=True)
        _require_finite("delta", self.delta, 0.0, strict=True)
        require(self.delta < 1, "delta must be below 1", self.delta)
        _require_whole("horizon", self.horizon, 2)
