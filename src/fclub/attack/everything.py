"""The audit of everything: all attacks on every live policy, unit and level."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from fclub.attack.brokered import Outside
from fclub.attack.exact import Exact
from fclub.attack.live import NUMBERS, Attack, Progress
from fclub.attack.pairs import Pair, live_pairs
from fclub.attack.scenes import brief, printed
from fclub.attack.together import attack_by_lies, attack_two_servers
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.noise import DiscreteNoise

BUDGETS = ((8.0, 1e-5), (0.5, 1e-5))
"""At one alone a wrong scale could hide where the deviation is near 1."""

SURFACES = {
    "generated histories": "all of the routes that change something, restarts, restores, late rewards",
    "exact twins": "how far one visit or user moves each number that is sent; what carries no noise",
    "witness": "whether each number's noise is what was drawn for it; what a user adds, alone and not",
    "claim": "whether noise over bound is the claimed ε and δ, by their formula",
    "scenes": "restarts from log and snapshot, newcomers, a store put back, a forgotten user's return",
    "facts": "number, kind, order, size and time of messages; ids, counts, order of entries; log lines",
    "served": "at (user, interactive), what others are served from",
    "noise": "scale and tails of each number and side, correlation of any two, bits, repetitions",
    "guesses": "likelihood ratio, linear discriminant, quadratic score, with the confidence they prove",
    "ledger": "releases on the wire that the ledger in the store has not charged",
    "broker": "all of this but guesses for somebody who listens at a NATS broker; headers; one budget",
    "secure sums": "masked vectors near uniform, a drawn share of every member, a lying global server",
    "two at once": "two servers with the same data in one federation",
    "processes": "two processes with the same data",
}
"""What an audit of everything covers."""


@dataclass(frozen=True)
class Result:
    """The findings about one promise at one budget."""

    pair: Pair
    epsilon: float
    delta: float
    findings: list[Finding]

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]


def attack_live(
    pairs: list[Pair] | None = None,
    budgets: tuple[tuple[float, float], ...] = BUDGETS,
    numbers: int = NUMBERS,
    progress: Progress = lambda done: None,
) -> Iterator[Result]:
    """Every promise at every budget, at the first of them over a broker too."""
    source = DiscreteNoise()
    for pair in live_pairs() if pairs is None else pairs:
        for epsilon, delta in budgets:
            attack = Attack(pair, epsilon, delta, source)
            findings = [*attack.twins(), *Exact(attack).findings(), *attack.noise(numbers, progress)]
            if not pair.printed and not pair.secure:  # that one sends when it likes
                findings += attack_two_servers(attack)
            if pair.secure and (epsilon, delta) == budgets[0]:
                findings += attack_by_lies(attack)
            elif (epsilon, delta) == budgets[0] and not pair.printed:
                progress(f"{pair} over a broker")
                findings += Outside(attack).findings()
            yield Result(pair, epsilon, delta, findings)


def send_once() -> list[str]:
    """What a fresh process sends of every promise, as text."""
    found = []
    for pair in live_pairs():
        attack = Attack(pair, 1.0, 1e-5)
        sent = attack.play(printed if pair.printed else brief, attack.neighbours()[0].first)
        found += [row.tobytes().hex() for row in sent.raw]
    return found


def attack_processes() -> Finding:
    """Two processes with the same data: noise from a counter, or from a seed, would be the same."""
    command = [
        sys.executable,
        "-c",
        "import json, fclub.attack.everything as a; print(json.dumps(a.send_once()))",
    ]
    both = [subprocess.run(command, check=True, capture_output=True).stdout for _ in range(2)]
    first, second = (set(json.loads(sent)) for sent in both)
    return Finding("two processes", "repeated numbers", Interval(float(len(first & second)), 0.0, 0.0))
