"""When a comparison counts: paired over seeds, since every policy meets the same users and items."""

from __future__ import annotations

from collections import Counter
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
    """`a: 12, b: 34` for a reader."""
    return ", ".join(f"{label}: {curve.end:,.0f}" for label, curve in zip(labels, curves, strict=True))


@dataclass(frozen=True)
class Summary:
    """A claim over all places where it was looked at; `measured` is from the first of them."""

    claim: str
    verdict: str
    places: str
    measured: str


def sum_up(claims: Sequence[Claim]) -> list[Summary]:
    """One line per claim: the verdict if it is the same everywhere, how often which otherwise."""
    grouped: dict[str, list[Claim]] = {}
    for claim in claims:
        grouped.setdefault(claim.claim, []).append(claim)
    return [_sum_up(text, found) for text, found in grouped.items()]


def _sum_up(text: str, found: list[Claim]) -> Summary:
    counts = Counter(claim.verdict for claim in found)
    if len(counts) == 1:
        verdict = found[0].verdict
        places = "everywhere" if len(found) > 1 else found[0].where
    else:
        verdict = PARTLY
        places = ", ".join(f"{verdict} in {number}" for verdict, number in counts.most_common())
    several, first = len(found) > 1, found[0]
    places = f"{len(found)} places: {places}" if several else places
    measured = f"{first.where}: {first.measured}" if several else first.measured
    return Summary(text, verdict, places, measured)
