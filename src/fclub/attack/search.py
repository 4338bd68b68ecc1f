"""A search for neighbours that can be told apart: a generator, a mechanism and a tester.

Histories are generated with their neighbours (`histories`), played through the routes of running
servers (`served`), and compared: what carries no noise has to be equal, what carries noise may move no
further than the noise is calibrated for, and the noise has to be what OpenDP gave. A history for which
that is not so is made smaller until nothing can be left out of it.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from random import Random
from typing import Protocol

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from fclub.attack.exact import ROUNDED, Witness, by_release, unexplained
from fclub.attack.histories import USERS, History, PutBack, histories
from fclub.attack.live import Attack, Progress, memory
from fclub.attack.pairs import Pair, live_pairs
from fclub.attack.served import Player, Served
from fclub.attack.transcripts import Transcript
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.levels import USER
from fclub.privacy.noise import NoiseSource, NoNoise
from fclub.service.nodes.handshake import REFUSED

HISTORIES = 300
"""How many are tried in a usual audit, over all promises."""

CHUNK = 50
"""Histories of one promise at one budget, before the next has its turn."""


class Mechanism(Protocol):
    """Plays one side of a history; without a source there is no noise."""

    def play(self, history: History, side: int, source: NoiseSource | None) -> Transcript: ...


class FromRoutes:
    """Requests made from the table of routes."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def histories(self) -> SearchStrategy[History]:
        return histories(self.pair)


class Federation:
    """A local and a global server on fresh stores, the local one asked through its routes.

    What the global server says comes late where contributions are taken at what it said: the bound is
    on what one user changes given everything that was sent before.
    """

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    def play(self, history: History, side: int, source: NoiseSource | None) -> Transcript:
        attack, late = self.attack, self.attack.pair.unit == USER
        with tempfile.TemporaryDirectory(dir=memory()) as folder:
            given = source or NoNoise()
            running = Served(Path(folder), attack.model, given, source is not None, late)
            with closing(running):
                Player(history, side, running).play()
                running.finish()
            read = attack.reader.read(running)
        # A store that another one has replaced releases nothing; what counts are the books of that one.
        replaced = running.node.sessions.handshake.standing.state == REFUSED
        return read._replace(charged=len(read.keys), spent=inf) if replaced else read


class Neighbours:
    """Facts equal, sums within the bound, everything charged, noise as it was drawn."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    def failures(self, history: History, mechanism: Mechanism) -> Iterator[Finding]:
        first, second = (mechanism.play(history, side, None) for side in (0, 1))
        others = [user for user in USERS if user != history.target]
        found = self.attack.compare(first, second, history.factor, others)
        found.pop("runs without a release")
        if self.attack.pair.grouped:
            found.pop(
                "uncharged releases"
            )  # as many streams as there are users, of whom one sum is read
        if self._can_witness(history) and first.keys:
            source = Witness()
            run = mechanism.play(history, 0, source)
            found |= self._witnessed(run, first, source)
        for test, interval in found.items():
            if not interval.inside:
                yield Finding(history.kind, test, interval)

    def _can_witness(self, history: History) -> bool:
        """A witness draws numbers so far out that a global server refuses streams with them, and does
        not notice then that a store is older than what it heard."""
        pair, back = self.attack.pair, any(isinstance(step, PutBack) for step in history.steps)
        return history.alike and not pair.grouped and not (back and pair.unit != USER)

    def _witnessed(self, run: Transcript, twin: Transcript, source: Witness) -> dict[str, Interval]:
        """Each release has the noise of one draw, and no two have the same."""
        claimed, (together, deviations) = self.attack.reader.deviations, self.attack.reader.draws
        drawn = by_release(source.drawn, deviations)
        if run.keys != twin.keys:
            return {"releases that follow from noise": Interval(1.0, 0.0, 0.0)}
        limit = 0.5 if self.attack.pair.unit == USER else ROUNDED
        missing = unexplained((run.white - twin.white) * claimed, drawn, together, limit)
        return {"releases with noise that was not drawn for them": Interval(float(missing), 0.0, 0.0)}


@dataclass(frozen=True)
class Searched:
    """What was found for one promise at one budget: how many histories, and the smallest that fails."""

    pair: Pair
    epsilon: float
    delta: float
    tried: int
    history: History | None = None
    failures: tuple[Finding, ...] = ()


def search(
    pair: Pair,
    epsilon: float,
    delta: float,
    count: int,
    seed: int = 0,
    seconds: float = inf,
    shrink: bool = True,
) -> Searched:
    """Try so many histories, for so long, and make the first that fails as small as possible."""
    attack = Attack(pair, epsilon, delta)
    generator, mechanism, tester = FromRoutes(pair), Federation(attack), Neighbours(attack)
    tried, end = 0, time.monotonic() + seconds
    failed: dict[str, tuple[Finding, ...]] = {}

    def fails(history: History) -> bool:
        nonlocal tried
        if not failed:
            if time.monotonic() > end:
                return False
            tried += 1
        found = tuple(tester.failures(history, mechanism))
        if found:
            failed[str(history)] = found
        return bool(found)

    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    rules = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    try:
        smallest = find(generator.histories(), fails, settings=rules, random=Random(seed))
    except NoSuchExample:
        return Searched(pair, epsilon, delta, tried)
    return Searched(pair, epsilon, delta, tried, smallest, failed[str(smallest)])


def search_all(
    pairs: list[Pair] | None,
    budgets: tuple[tuple[float, float], ...],
    count: int,
    seconds: float | None = None,
    seed: int | None = None,
    progress: Progress = lambda done: None,
) -> Iterator[Searched]:
    """Every promise but the printed one, which has no twins: so many histories in all, or for so long.

    The printed algorithm's trigger needs its noise. Without a seed every search is another one.
    """
    pairs = [pair for pair in (live_pairs() if pairs is None else pairs) if not pair.printed]
    each = ceil(count / max(1, len(pairs) * len(budgets)))
    end, lap = time.monotonic() + (seconds or inf), 0
    while pairs:
        for pair in pairs:
            for epsilon, delta in budgets:
                left = end - time.monotonic()
                if left <= 0.0:
                    return
                chosen = secrets.randbits(64) if seed is None else seed + lap
                progress(f"{pair}, generated histories")
                yield search(pair, epsilon, delta, CHUNK if seconds else each, chosen, left)
        if not seconds:
            return
        lap += 1
