"""What the paper says about its figures, asked of the data; and what we say about ours.

The wording is ours. A claim is only made where all the policies that it speaks of were run.
"""

from __future__ import annotations

from collections.abc import Iterator

from fclub.experiments.report.bounds import PRINTED, make_theory
from fclub.experiments.report.measured import Curve, Measured
from fclub.experiments.report.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    Claim,
    below,
    ends_of,
    exponent,
    grows,
    together,
)
from fclub.experiments.study.study import Figure

LOCAL = ("sclub", "club", "linucb")
"""The baselines that share nothing between servers."""
BASELINES = (*LOCAL, "homo", "homo-dc")
LITTLE = 1.25
"""`A little worse` is read as at most a quarter more regret."""
ALONE = "alone"
"""The label of fclub-plus without sharing."""
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
