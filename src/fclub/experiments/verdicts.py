"""When a comparison counts: paired over seeds, since every policy meets the same users and items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, sqrt

import numpy as np

from fclub.experiments.measure import Curve

HOLDS, FAILS, PARTLY, OPEN = "holds", "does not hold", "holds in part", "not settled"
ERRORS = 2.0
"""A difference counts if it is more than so many of its standard errors."""


@dataclass(frozen=True)
class Claim:
    """What is claimed, where it was looked at, what was seen, and whether it holds."""

    figure: str
    where: str
    claim: str
    measured: str
    verdict: str


def below(first: Curve, second: Curve) -> bool | None:
    """Whether `first` ends below `second`; None if the seeds do not settle it."""
    difference = second.last - first.last
    mean = float(difference.mean())
    if len(difference) > 1:
        margin = ERRORS * float(difference.std(ddof=1)) / sqrt(len(difference))
        if abs(mean) <= margin:
            return None
    return mean > 0


def together(answers: Sequence[bool | None]) -> str:
    """The verdict on a claim that says several things."""
    if all(answers):
        return HOLDS
    if not any(answer is False for answer in answers):
        return OPEN
    return PARTLY if any(answers) else FAILS


def exponent(curve: Curve) -> float:
    """b in regret ~ t^b over the second half of the rounds: 1 is linear, ½ a square root."""
    end = float(curve.t[-1])
    half = curve.at(end / 2)
    return log2(curve.end / half) if half > 0 else float("nan")


def grows(curves: Sequence[Curve]) -> str:
    """Whether the end values grow from the first curve to the last, and at every step."""
    ends = below(curves[0], curves[-1])
    if ends is None:
        return OPEN
    steps = np.diff([curve.end for curve in curves])
    if not ends:
        return FAILS
    return HOLDS if bool(np.all(steps > 0)) else PARTLY


def ends_of(labels: Sequence[str], curves: Sequence[Curve]) -> str:
    """`a 12, b 34` for a reader."""
    return ", ".join(f"{label} {curve.end:,.0f}" for label, curve in zip(labels, curves, strict=True))
