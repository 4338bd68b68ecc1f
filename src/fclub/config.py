"""What is fixed before the first round: the problem, the protocol's constants, the privacy budget.

All three are frozen and check their ranges once, when they are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Annotated, Literal

from msgspec import Meta

from fclub.errors import InvalidSetting
from fclub.parameters import check_fields, meaning

Users = Annotated[int, meaning("number of users", least=1)]
Servers = Annotated[int, meaning("number of local servers, at most one per user", least=1)]
Dim = Annotated[int, meaning("number of features of an item", least=1)]
Ridge = Annotated[float, meaning("regularisation λ of every regression", above=0)]
Sigma0 = Annotated[float, meaning("σ₀: bound of a reward's deviation from its mean", "reward", above=0)]
Alpha = Annotated[float, meaning("chance that any confidence set fails", above=0, below=1)]
Exploration = Annotated[
    float, meaning("multiple of the confidence radius that is added to an item's score", least=0)
]
Deletion = Annotated[
    float,
    meaning("α₁ of Eq. 3: the larger, the later two users are told apart", least=0, infinite=True),
]
Merging = Annotated[
    float,
    meaning("α₂ of Eq. 4: the larger, the more clusters are merged", least=0, infinite=True),
]
UploadRatio = Annotated[
    float, meaning("U of Eq. 5: growth of a determinant that makes a server upload", least=1)
]
DownloadRatio = Annotated[
    float, meaning("D of Eq. 6: growth of a determinant that makes a server download", least=1)
]
ClusterBound = (
    Annotated[
        int,
        meaning("bound of the local clusters of the whole federation; null: its users", least=1),
    ]
    | None
)
Sparse = (
    Annotated[bool, meaning("start from a random graph of users; null: above 2,000 users a server")]
    | None
)
SparseClusters = Annotated[
    int, meaning("clusters that a random graph of users must hold together", least=1)
]
Epsilon = Annotated[float, meaning("ε that is promised", above=0)]
Delta = Annotated[float, meaning("δ that is promised", above=0, below=1)]
Horizon = Annotated[int, meaning("observations for which noise is provisioned", "visits", least=2)]


def require(condition: bool, message: str, value: object) -> None:
    """Raise `InvalidSetting` unless the condition holds."""
    if not condition:
        raise InvalidSetting(f"{message}, got {value!r}", value)


RewardLimits = tuple[float, float] | Literal["unbounded"]


def _as_range(reward: object) -> RewardLimits:
    """(low, high) as two finite numbers, also from a list; or "unbounded"."""
    if reward == "unbounded":
        return "unbounded"
    try:
        low, high = (float(end) for end in reward)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        low, high = inf, -inf
    known = isfinite(low) and isfinite(high) and low < high
    require(known, 'reward must be (low, high) with low < high, or "unbounded"', reward)
    return low, high


@dataclass(frozen=True)
class Problem:
    """What a policy may know about its world.

    `constant` is the value of the last feature where every item has the same one there, else None:
    only such a domain allows centred rewards (docs/privacy.md). `reward` is the range of rewards,
    (low, high), or "unbounded". `items` is how many a catalogue has whose items come again; 0 where
    every visit brings new ones. Policies without a federation, and rivals, learn from rewards as they
    are. Federations of local servers map the range to [0, 1], and clip unbounded rewards to it: their
    messages and noise are for bounded rewards. A `privacy_report` says so.

    >>> import fclub
    >>> policy = fclub.LinUCB()
    >>> policy.start(fclub.Problem(users=4, servers=2, dim=3), [0, 0, 1, 1], seed=1)
    >>> policy.recommend(0, [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    0
    """

    users: Users
    servers: Servers
    dim: Dim
    constant: Annotated[float, Meta(gt=0, le=1)] | None = None
    reward: RewardLimits = (0.0, 1.0)
    items: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "reward", _as_range(self.reward))
        require(
            self.servers <= self.users,
            f"servers must be at most the number of users ({self.users})",
            self.servers,
        )

    @property
    def reward_range(self) -> tuple[float, float]:
        """The least and the largest reward; infinite where rewards are unbounded."""
        return (-inf, inf) if self.reward == "unbounded" else self.reward


@dataclass(frozen=True)
class Protocol:
    """Constants of Algorithms 1 to 4, at the theory's values; exploration = 1 is what the proofs need.

    Without delays both ratios are 1, without clusters `merging` is ∞.

    >>> import fclub
    >>> fclub.Protocol(upload_ratio=1.1).download_ratio
    1.01
    """

    upload_ratio: UploadRatio = 1.01
    download_ratio: DownloadRatio = 1.01
    deletion: Deletion = 1.5
    merging: Merging = 2.0
    ridge: Ridge = 1.0
    sigma_0: Sigma0 = 0.5
    alpha: Alpha = 0.01
    exploration: Exploration = 1.0
    cluster_bound: ClusterBound = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Privacy:
    """The promised budget (ε, δ), and the horizon T for which the printed tree is provisioned.

    >>> import fclub
    >>> fclub.Privacy(epsilon=2.0)
    Privacy(epsilon=2.0, delta=0.1, horizon=100000)
    >>> fclub.Privacy(delta=1.5)
    Traceback (most recent call last):
    fclub.errors.InvalidSetting: delta must be a number above 0 and below 1, got 1.5
    """

    epsilon: Epsilon = 1.0
    delta: Delta = 0.1
    horizon: Horizon = 100_000

    def __post_init__(self) -> None:
        check_fields(self)
