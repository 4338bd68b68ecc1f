"""Observations that fade: what a user liked long ago says less of what it likes now.

With every visit of a user all its earlier observations count λ = 2^(−1/h) times as much as before, so
that after `half_life` h visits they count half. A user is served from what is left of them; sums that
are shared are made of whole observations, since types of users move slowly.
"""

from __future__ import annotations

from fclub.core.compiling import compiled
from fclub.core.statistics import Packed, observe
from fclub.core.types import Vector


def keep_share(half_life: float) -> float:
    """λ; 1 where nothing fades."""
    return float(0.5 ** (1.0 / half_life)) if half_life > 0.0 else 1.0


@compiled
def fade_in(recent: Packed, row: int, x: Vector, y: float, kept: float) -> None:
    """(V, b, T) ← (λV + x xᵀ, λb + y x, T + 1)."""
    for i in range(x.shape[0]):
        recent.moment[row, i] *= kept
        for j in range(x.shape[0]):
            recent.gram[row, i, j] *= kept
    observe(recent, row, x, y)


def mean_weight(count: int, kept: float) -> float:
    """What an observation counts on average after `count` of them: (1 − λⁿ)/(1 − λ)/n."""
    return 1.0 if kept == 1.0 else (1.0 - kept**count) / (1.0 - kept) / max(count, 1)
