"""What the paper says about its figures, asked of the data; and what we say about ours.

The wording is ours. A claim is only made where all the policies that it speaks of were run. It is
judged over seeds in pairs, since every policy meets the same users and items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log, log2, nan, sqrt
from typing import Any

import numpy as np
from scipy.special import stdtr

from fclub.core.clustering import adjusted_rand_index
from fclub.core.types import Floats
from fclub.experiments.report.bounds import make_theory
from fclub.experiments.report.measured import Curve, Measured
from fclub.experiments.study.advice import ALONE
from fclub.experiments.study.figures import PRINTED
from fclub.experiments.study.study import Figure

HOLDS, FAILS, PARTLY, OPEN = "holds", "does not hold", "holds in part", "not settled"
LEVEL = 0.05
"""The chance of any wrong “holds” or “does not hold” among all comparisons of a report, at most."""
FEWEST = 5
"""Fewer seeds settle nothing: Student's t over two or three is wide enough for any verdict."""


@dataclass(frozen=True)
class PairedTest:
    """A paired comparison over seeds, whose answer is `said` if `p` is small enough.

    `p` is two-sided, by Student's t; after `settle`, adjusted for all comparisons of the report.
    """

    said: bool
    p: float

    @property
    def answer(self) -> bool | None:
        return self.said if self.p <= LEVEL else None


Answer = PairedTest | bool | None


@dataclass(frozen=True)
class Claim:
    """What is claimed, where it was looked at, what was seen, and what follows from the answers.

    `steady` is False where a claim about a whole row of values holds for its ends only; `remark` is
    added to the verdict.
    """

    figure: str
    where: str
    claim: str
    measured: str
    answers: tuple[Answer, ...]
    steady: bool = True
    remark: str = ""

    @property
    def verdict(self) -> str:
        plain = [a.answer if isinstance(a, PairedTest) else a for a in self.answers]
        found = together(plain)
        if found == HOLDS and not self.steady:
            return PARTLY
        return f"{found}, {self.remark}" if self.remark and found != OPEN else found


def to_row(claim: Claim) -> dict[str, Any]:
    """JSON-ready; `p` has the adjusted p-value of every comparison."""
    named = {key: getattr(claim, key) for key in ("figure", "where", "claim", "measured", "verdict")}
    return named | {"p": [a.p for a in claim.answers if isinstance(a, PairedTest)]}


def above_zero(differences: Floats) -> PairedTest:
    """Whether the mean of paired differences is positive: Student's t with n - 1 degrees of freedom."""
    n, mean = len(differences), float(differences.mean())
    if n < FEWEST or not np.isfinite(mean):
        return PairedTest(mean > 0, 1.0)
    error = float(differences.std(ddof=1)) / sqrt(n)
    t = mean / error if error > 0 else inf if mean != 0 else 0.0
    return PairedTest(mean > 0, float(2 * stdtr(n - 1, -abs(t))))


def below(first: Curve, second: Curve, factor: float = 1.0) -> PairedTest:
    """Whether `first` ends below `factor` times `second`."""
    return above_zero(factor * second.last - first.last)


def settle(claims: Sequence[Claim]) -> list[Claim]:
    """The claims with p-values adjusted by Holm's method for all comparisons among them.

    The i-th smallest of m p-values is multiplied by m - i + 1, and no adjusted one is smaller than the
    one before it. With LEVEL as the limit, the chance of any wrong answer is at most LEVEL.
    """
    tests = [a for claim in claims for a in claim.answers if isinstance(a, PairedTest)]
    adjusted = iter(holm([test.p for test in tests]))

    def adjust(answer: Answer) -> Answer:
        return replace(answer, p=next(adjusted)) if isinstance(answer, PairedTest) else answer

    return [replace(claim, answers=tuple(map(adjust, claim.answers))) for claim in claims]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (1979), in the given order."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return [float(value) for value in np.minimum(adjusted, 1.0)]


def together(answers: Sequence[bool | None]) -> str:
    """The verdict on a claim that says several things."""
    if all(answers):
        return HOLDS
    if not any(answer is False for answer in answers):
        return OPEN
    return PARTLY if any(answers) else FAILS


def exponent(curve: Curve) -> float:
    """b in regret ~ t^b over the second half of the rounds: 1 is linear, ½ a square root."""
    return float(exponents(replace(curve, rows=curve.mean[None]))[0])


def exponents(curve: Curve) -> Floats:
    """The same, seed by seed; nan where nothing was lost in the first half."""
    middle = float(curve.t[-1]) / 2
    halves = [float(np.interp(middle, curve.t, row)) for row in curve.rows]
    ends = [float(row[-1]) for row in curve.rows]
    return np.array([log2(b / a) if min(a, b) > 0 else nan for a, b in zip(halves, ends, strict=True)])


def grows(figure: str, where: str, text: str, measured: str, curves: Sequence[Curve]) -> Claim:
    """Whether the end values grow from the first curve to the last, and at every step."""
    steps = np.diff([curve.end for curve in curves])
    ends = below(curves[0], curves[-1])
    return Claim(figure, where, text, measured, (ends,), steady=bool(np.all(steps > 0)))


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
    return Claim("", m.panel.title, text, seen, tuple(below(own, other) for other in others))


def _little_worse(m: Measured) -> Claim:
    own, rivals = m.curve(PRINTED, "regret"), ("fclub", "fclub-dc")
    ratios = [own.end / m.curve(rival, "regret").end for rival in rivals]
    seen = ", ".join(f"{ratio:.2f} × {rival}" for ratio, rival in zip(ratios, rivals, strict=True))
    text = f"privacy costs {PRINTED} only a little regret (read as at most {LITTLE:g} ×)"
    answers = tuple(below(own, m.curve(rival, "regret"), LITTLE) for rival in rivals)
    return Claim("", m.panel.title, text, seen, answers)


def _homo_linear(m: Measured) -> Claim:
    names = ("homo", "homo-dc")
    growth = [exponent(m.curve(name, "regret")) for name in names]
    seen = ", ".join(f"{name} grows as t^{b:.2f}" for name, b in zip(names, growth, strict=True))
    text = "treating all users as alike (homo, homo-dc) suffers linear regret"
    answers = tuple(above_zero(exponents(m.curve(name, "regret")) - LINEAR) for name in names)
    return Claim("", m.panel.title, text, seen, answers)


def _sublinear(m: Measured, name: str) -> Claim:
    growth = exponents(m.curve(name, "regret"))
    seen = f"{name} grows as t^{exponent(m.curve(name, 'regret')):.2f}"
    text = f"regret of {name} is sublinear (an exponent below {LINEAR:g} over the second half)"
    return Claim("", m.panel.title, text, seen, (above_zero(LINEAR - growth),))


def _homo_worst(m: Measured) -> Claim:
    others = [m.curve(name, "regret") for name in (*LOCAL, "fclub", "fclub-dc")]
    answers = tuple(below(other, m.curve(n, "regret")) for other in others for n in ("homo", "homo-dc"))
    curves = [m.curve(name, "regret") for name in ("homo", "homo-dc")]
    worst = max(others, key=lambda curve: curve.end)
    seen = (
        f"{ends_of(('homo', 'homo-dc'), curves)}; worst of the others without noise: {worst.end:,.0f}"
    )
    text = "homo and homo-dc are the worst of the policies without noise"
    return Claim("", m.panel.title, text, seen, answers)


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
        for name in (PRINTED, "fclub-dc", "fclub"):
            if _has(m, name):
                yield _sublinear(m, name)
        yield from _ours(m)


def degenerate(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    """The discussion's factors are orders of growth; they are read without their constants."""
    for m in measured:
        own = m.curve(PRINTED, "regret")
        rival = m.curve("fclub-dc", "regret")
        given = m.settings[PRINTED]
        factor = sqrt(log(1 / float(given["delta"])) / float(given["epsilon"]))
        text = "privacy multiplies regret by at most √(log(1/δ)/ε) in degenerate cases, constants apart"
        seen = f"{own.end / rival.end:.2f} × fclub-dc, factor {factor:.2f}"
        yield Claim("", m.panel.title, text, seen, (below(own, rival, factor),))
        for name in (PRINTED, "fclub-dc"):
            yield _sublinear(m, name)


def communication(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    for m in measured:
        if _has(m, "fclub", "fclub-dc", PRINTED):
            full = m.curve("fclub", "total")
            names = ("fclub-dc", PRINTED)
            curves = [m.curve(name, "total") for name in names]
            seen = f"fclub: {full.end:,.0f}, against {ends_of(names, curves)}"
            text = "delayed communication reduces the cost"
            answers = tuple(below(curve, full) for curve in curves)
            yield Claim("", m.panel.title, text, seen, answers)


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
                yield Claim("", m.panel.title, text, seen, (below(first, second),))


STUDIED = {
    "parameters-d": "regret grows with the dimension d",
    "parameters-epsilon": "a smaller ε gives lower regret (so the text; a slip)",
    "parameters-L": "regret grows with the number of servers L",
    "parameters-m": "regret grows with the number of clusters m",
    "parameters-n": "regret grows with the number of users n (its theorem; not seen in its figure)",
}


def sweep(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    names = [label for label in measured[0].labels if label.startswith(PRINTED)]
    for name in (*names, "fclub-dc"):
        if name == "fclub-dc" and figure.name == "parameters-epsilon":
            continue
        curves = [m.curve(name, "regret") for m in measured]
        seen = ends_of([m.panel.title for m in measured], curves)
        yield grows("", f"{figure.title}, {name}", STUDIED[figure.name], seen, curves)


def privacy(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    """Ours: more budget, less regret, for every private policy and δ."""
    for label in (label for label in measured[0].labels if "δ=" in label):
        curves: list[Curve] = [m.curve(label, "regret") for m in reversed(measured)]
        seen = ends_of([m.panel.title for m in measured], curves[::-1])
        yield grows("", label, "ours: a larger ε gives lower regret", seen, curves)


def tradeoff(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    for name in ("fclub-dc",):
        messages = [m.curve(name, "total") for m in measured]
        seen = ends_of([m.panel.title for m in measured], messages)
        text = "a larger U=D sends less"
        yield grows("", figure.title, text, seen, messages[::-1])


def bounds(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    (m,) = measured
    theory = make_theory(m, m.panel.experiment.rounds)
    for bound, metric, text in (
        (theory.regret(), "regret", "regret stays under the bound of Theorem 1"),
        (theory.communication(), "total", "communication stays under its bound"),
    ):
        seen = m.curve(PRINTED, metric).end
        words = f"{seen:,.0f} measured, bound {bound}"
        remark = "vacuous" if bound.vacuous else ""
        yield Claim("", m.panel.title, text, words, (seen <= bound.value,), remark=remark)


def server_score(m: Measured) -> float:
    """The adjusted Rand index of “all users of a server are one cluster”, whatever the data say."""
    environment = m.panel.experiment.environment.make_environment()
    environment.start(m.panel.experiment.seeds[0])
    return adjusted_rand_index(environment.server_of, environment.labels)


def clusters(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    for m in measured:
        trivial = server_score(m)
        for name in (PRINTED, "fclub-dc", "fclub-plus", "cdp-fclub-plus"):
            if _has(m, name):
                ari, found = m.curve(name, "ari"), m.curve(name, "found").end
                right = int((ari.last > 1 - 1e-9).sum())
                seen = f"{right} of {len(ari.last)} seeds; {found:.1f} clusters, ARI {ari.end:.2f}"
                seen += f" (the server alone: {trivial:.2f})"
                verdict = True if right == len(ari.last) else False if right == 0 else None
                text = f"{name} finds the true clusters by the last round"
                yield Claim("", m.panel.title, text, seen, (verdict,))


def gain(figure: Figure, measured: list[Measured]) -> Iterator[Claim]:
    """Ours: what federating gains over the same policy alone."""
    for m in measured:
        alone = m.curve(ALONE, "regret")
        for label in (label for label in m.labels if label != ALONE):
            own = m.curve(label, "regret")
            seen = f"{float((own.last / alone.last).mean()):.3f} × alone"
            text = f"ours: federating pays with {label}"
            yield Claim("", m.panel.title, text, seen, (below(own, alone),))
