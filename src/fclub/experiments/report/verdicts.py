"""When a comparison counts: paired over seeds, since every policy meets the same users and items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, sqrt

import numpy as np

from fclub.experiments.report.measured import Curve

HOLDS, FAILS, PARTLY, OPEN = "holds", "does not hold", "holds in part", "not settled"
ERRORS = 2.0
"""A difference counts if it exceeds this number of its standard errors."""


@dataclass(frozen=True)
class Claim:
    """What is claimed, where it was looked at, what was seen, and whether it holds."""

    figure: str
    where: str
    claim: str
    measured: str
    verdict: str


def below(first: Curve, second: Curve) -> bool | None:
    """Whether `first` ends below `second`; None if the seeds do not settle it, as one never does."""
    difference = second.last - first.last
    if len(difference) < 2:
        return None
    mean = float(difference.mean())
    margin = ERRORS * float(difference.std(ddof=1)) / sqrt(len(difference))
    return None if abs(mean) <= margin else mean > 0


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


NAMED = 3
"""The most places that are named; more are counted."""


def sum_up(claims: Sequence[Claim]) -> list[Summary]:
    """One line per claim: the verdict over all places, and which of them said what."""
    grouped: dict[str, list[Claim]] = {}
    for claim in claims:
        grouped.setdefault(claim.claim, []).append(claim)
    return [_sum_up(text, found) for text, found in grouped.items()]


def _sum_up(text: str, found: list[Claim]) -> Summary:
    places: dict[str, list[str]] = {}
    for claim in found:
        places.setdefault(claim.verdict, []).append(claim.where)
    first = found[0]
    measured = f"{first.where}: {first.measured}" if len(found) > 1 else first.measured
    if len(places) == 1:
        where = f"everywhere ({len(found)} places)" if len(found) > 1 else first.where
        return Summary(text, first.verdict, where, measured)
    ranked = sorted(places.items(), key=lambda item: -len(item[1]))
    where = "; ".join(f"{verdict} in {_named(names)}" for verdict, names in ranked)
    return Summary(text, _overall(list(places)), where, measured)


def _named(places: list[str]) -> str:
    """`Synthetic, spread` is one place, so places are told apart by quotes."""
    return f"{len(places)} places" if len(places) > NAMED else ", ".join(f"“{p}”" for p in places)


def _overall(verdicts: Sequence[str]) -> str:
    """Different verdicts as one: `holds in part` needs a place where at least a part holds."""
    if all(verdict.startswith(HOLDS) and verdict != PARTLY for verdict in verdicts):
        return HOLDS
    if any(verdict.startswith(HOLDS) for verdict in verdicts):
        return PARTLY if FAILS in verdicts or PARTLY in verdicts else OPEN
    return FAILS
