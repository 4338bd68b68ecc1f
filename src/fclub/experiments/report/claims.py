"""What the paper says about its figures, asked of the data; and what we say about ours.

The wording is ours. A claim is only made where all the policies that it speaks of were run. It is
judged over seeds in pairs, since every policy meets the same users and items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2, sqrt

import numpy as np

from fclub.experiments.report.bounds import PRINTED, make_theory
from fclub.experiments.report.measured import Curve, Measured
from fclub.experiments.study.advice import ALONE
from fclub.experiments.study.study import Figure

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


LOCAL = ("sclub", "club", "linucb")
"""The baselines that share nothing between servers."""
BASELINES = (*LOCAL, "homo", "homo-dc")
LITTLE = 1.25
"""`A little worse` is read as at most a quarter more regret."""
LINEAR = 0.9
"""Regret that grows with an exponent of at least this is called linear."""


def _has(m: Measured, *labels: str) -> bool:
    return all(label in m.curves for label in labels)


def _beats(m: Measured, name: str, rivals: tuple[str, ...], text: str) -> Claim:
    own = m.curve(name, "regret")
    others = [m.curve(rival, "regret") for rival in rivals]
    seen = f"{name}: {own.end:,.0f}, against {ends_of(rivals, others)}"
    return Claim("", m.panel.title, text, seen, together([below(own, other) for other in others]))


def _little_worse(m: Measured) -> Claim:
    own, rivals = m.curve(PRINTED, "regret"), ("fclub", "fclub-dc")
    ratios = [own.end / m.curve(rival, "regret").end for rival in rivals]
    seen = ", ".join(f"{ratio:.2f} × {rival}" for ratio, rival in zip(ratios, rivals, strict=True))
    text = f"privacy costs {PRINTED} only a little regret (read as at most {LITTLE:g} ×)"
    return Claim("", m.panel.title, text, seen, HOLDS if max(ratios) <= LITTLE else FAILS)


def _homo_linear(m: Measured) -> Claim:
    names = ("homo", "homo-dc")
    growth = [exponent(m.curve(name, "regret")) for name in names]
    seen = ", ".join(f"{name} grows as t^{b:.2f}" for name, b in zip(names, growth, strict=True))
    text = "treating all users as alike (homo, homo-dc) suffers linear regret"
    return Claim("", m.panel.title, text, seen, together([b >= LINEAR for b in growth]))


def _homo_worst(m: Measured) -> Claim:
    others = [m.curve(name, "regret") for name in (*LOCAL, "fclub", "fclub-dc")]
    answers = [below(other, m.curve(n, "regret")) for other in others for n in ("homo", "homo-dc")]
    curves = [m.curve(name, "regret") for name in ("homo", "homo-dc")]
    worst = max(others, key=lambda curve: curve.end)
    seen = (
        f"{ends_of(('homo', 'homo-dc'), curves)}; worst of the others without noise: {worst.end:,.0f}"
    )
    text = "homo and homo-dc are the worst of the policies without noise"
    return Claim("", m.panel.title, text, seen, together(answers))


def _ours(m: Measured) -> Iterator[Claim]:
    rivals = tuple(name for name in LOCAL if name in m.curves)
    for name in ("fclub-plus", "cdp-fclub-plus"):
        if rivals and _has(m, name):
            noise = "with honest noise" if name.startswith("cdp") else "without noise"
            yield _beats(m, name, rivals, f"ours: {name}, {noise}, beats every local baseline")
    if _has(m, "cdp-fclub-plus", PRINTED):
        yield _beats(m, "cdp-fclub-plus", (PRINTED,), f"ours: cdp-fclub-plus beats {PRINTED}")


def comparison(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    for m in measured:
        if _has(m, PRINTED, *BASELINES):
            yield _beats(m, PRINTED, BASELINES, f"{PRINTED} beats {', '.join(BASELINES)}")
        if _has(m, PRINTED, "fclub", "fclub-dc"):
            yield _little_worse(m)
        if _has(m, "fclub-dc", *LOCAL):
            text = f"sharing between servers helps: fclub-dc beats {', '.join(LOCAL)}"
            yield _beats(m, "fclub-dc", LOCAL, text)
        if _has(m, "fclub", "fclub-dc", *BASELINES):
            yield _homo_linear(m)
            yield _homo_worst(m)
        yield from _ours(m)


def communication(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    for m in measured:
        if _has(m, "fclub", "fclub-dc", PRINTED):
            full = m.curve("fclub", "total")
            names = ("fclub-dc", PRINTED)
            curves = [m.curve(name, "total") for name in names]
            seen = f"fclub: {full.end:,.0f}, against {ends_of(names, curves)}"
            text = "delayed communication reduces the cost"
            answers = [below(curve, full) for curve in curves]
            yield Claim("", m.panel.title, text, seen, together(answers))


def runtime(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    order = (
        (PRINTED, "sclub", "cdp-fclub-dc is faster than sclub"),
        ("club", PRINTED, "club is faster than cdp-fclub-dc"),
        ("linucb", PRINTED, "linucb is faster than cdp-fclub-dc"),
        (PRINTED, "fclub", "delayed communication is faster than full (fclub)"),
    )
    for m in measured:
        for fast, slow, text in order:
            if _has(m, fast, slow):
                first, second = m.curve(fast, "microseconds"), m.curve(slow, "microseconds")
                seen = f"{fast} {first.end:.2f} µs, {slow} {second.end:.2f} µs"
                yield Claim("", m.panel.title, text, seen, together([below(first, second)]))


STUDIED = {
    "parameters-d": "regret grows with the dimension d",
    "parameters-epsilon": "a smaller ε gives lower regret (so the text; a slip)",
    "parameters-L": "regret grows with the number of servers L",
    "parameters-m": "regret grows with the number of clusters m",
    "parameters-n": "regret grows with the number of users n (its theorem; not seen in its figure)",
}


def sweep(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    for name in (PRINTED, "fclub-dc"):
        if name == "fclub-dc" and figure.name == "parameters-epsilon":
            continue
        curves = [m.curve(name, "regret") for m in measured]
        seen = ends_of([m.panel.title for m in measured], curves)
        yield Claim("", f"{figure.title}, {name}", STUDIED[figure.name], seen, grows(curves))


def privacy(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    """Ours: more budget, less regret, for every private policy and δ."""
    for label in (label for label in measured[0].labels if "δ=" in label):
        curves: list[Curve] = [m.curve(label, "regret") for m in reversed(measured)]
        seen = ends_of([m.panel.title for m in measured], curves[::-1])
        yield Claim("", label, "ours: a larger ε gives lower regret", seen, grows(curves))


def tradeoff(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    for name in ("fclub-dc",):
        messages = [m.curve(name, "total") for m in measured]
        seen = ends_of([m.panel.title for m in measured], messages)
        text = "a larger U=D sends less"
        yield Claim("", figure.title, text, seen, grows(messages[::-1]))


def bounds(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    (m,) = measured
    theory = make_theory(m, m.panel.experiment.rounds)
    for bound, metric, text in (
        (theory.regret(), "regret", "regret stays under the bound of Theorem 1"),
        (theory.communication(), "total", "communication stays under its bound"),
    ):
        seen = m.curve(PRINTED, metric).end
        verdict = HOLDS if seen <= bound.value else FAILS
        words = f"{seen:,.0f} measured, bound {bound}"
        yield Claim("", m.panel.title, text, words, f"{verdict}, vacuous" if bound.vacuous else verdict)


def clusters(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    for m in measured:
        for name in (PRINTED, "fclub-dc", "fclub-plus", "cdp-fclub-plus"):
            if _has(m, name):
                ari, found = m.curve(name, "ari"), m.curve(name, "found").end
                right = int((ari.last > 1 - 1e-9).sum())
                seen = f"{right} of {len(ari.last)} seeds; {found:.1f} clusters, ARI {ari.end:.2f}"
                verdict = HOLDS if right == len(ari.last) else FAILS if right == 0 else OPEN
                text = f"{name} finds the true clusters by the last round"
                yield Claim("", m.panel.title, text, seen, verdict)


def gain(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    """Ours: what federating gains over the same policy alone."""
    for m in measured:
        alone = m.curve(ALONE, "regret")
        for label in (label for label in m.labels if label != ALONE):
            own = m.curve(label, "regret")
            seen = f"{float((own.last / alone.last).mean()):.3f} × alone"
            text = f"ours: federating pays with {label}"
            yield Claim("", m.panel.title, text, seen, together([below(own, alone)]))
