"""Attacks in which chance plays no part: each number that is sent is taken apart, exactly.

A *witness* sits at the border to OpenDP, inside the process that draws, and writes down what each
measurement gave for which scale. What a server sends minus what its twin without noise sends has to be
that, number by number: noise that was cut off, made smaller by a hundredth, shared, left out where it
seemed needless or taken from elsewhere is seen in one run. Releases of whole users are sums of vectors,
each of them made from one user's data alone. So what a user changes among others is what it would have
sent alone, to the last step.
"""

from __future__ import annotations

import atexit
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import exp
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from fclub.attack import witnessed
from fclub.attack.live import SLACK, Attack
from fclub.attack.scenes import (
    BYSTANDERS,
    EVERYBODY,
    NEWCOMER,
    History,
    Scene,
    life,
    scenes_of,
)
from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.privacy import noise
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.levels import USER
from fclub.privacy.noise import DiscreteNoise

ROUNDED = 64.0
"""Steps by which a number of a stream may miss its draw: streams are decoded in doubles and rounded."""


@cache
def _log() -> str:
    """One file for all witnesses of this process, since they share a process that draws."""
    folder = tempfile.mkdtemp(prefix="fclub-witness-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log = Path(folder) / "drawn"
    log.touch()
    return str(log)


class Witness(DiscreteNoise):
    """Noise as a deployment draws it, of which the library's own answers are known.

    They are read from a log that is written inside the process that draws (`witnessed`), by whatever
    program the deployment runs there: on the way from there to what is sent nothing may happen to them.
    """

    def __init__(self) -> None:
        super().__init__((sys.executable, "-P", witnessed.__file__, _log(), str(noise.PROGRAM)))
        self._begin = Path(_log()).stat().st_size

    @property
    def drawn(self) -> list[tuple[float, list[int]]]:
        """Scale and numbers of every call of a measurement since this source was made."""
        lines = Path(_log()).read_bytes()[self._begin :].splitlines()
        return [(found["scale"], found["added"]) for found in map(json.loads, lines)]


def unexplained(noise: Floats, drawn: list[Whole | None], together: int, limit: float) -> int:
    """Releases whose noise is not that of a draw, or of so many one after the other, of its own."""
    found, left = 0, [draw for draw in drawn if draw is not None]
    for row in noise:
        sums = [sum(left[k : k + together]) for k in range(len(left) - together + 1)]
        gaps = [float(np.abs(row - one).max()) for one in sums]
        best = int(np.argmin(gaps)) if gaps else -1
        if best < 0 or gaps[best] > limit:
            found += 1
        else:
            del left[best : best + together]
    return found


def by_release(drawn: list[tuple[float, list[int]]], claimed: Floats) -> list[Whole | None]:
    """The library's numbers, release by release, in the order of the entries with these deviations.

    A release takes one call for each deviation; None where the calls were for others.
    """
    scales = np.unique(claimed).tolist()
    found: list[Whole | None] = []
    for start in range(0, len(drawn), len(scales)):
        calls, numbers = (
            dict(drawn[start : start + len(scales)]),
            np.zeros(len(claimed), dtype=np.int64),
        )
        fits = all(len(calls.get(s, ())) == np.count_nonzero(claimed == s) for s in scales)
        for scale in scales if fits else ():
            numbers[claimed == scale] = calls[scale]
        found.append(numbers if fits else None)
    return found


class Exact:
    """What can be said of one promise without repeating anything."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack
        self.users = attack.pair.unit == USER

    def findings(self) -> Iterator[Finding]:
        """The printed algorithm has no twins, and of groups only their sum is read."""
        pair = self.attack.pair
        if pair.printed:
            return
        yield Finding("claim", "δ at the claimed ε", self._claim())
        near = self.attack.neighbours()[0]
        scenes = scenes_of(pair) if self.users else {"life": life}
        histories = {"first": near.first, "second": near.second}
        if self.users:
            nobody = replace(near.second, silent=frozenset({*EVERYBODY, NEWCOMER}))
            histories["nobody"] = nobody
            for test, interval in self._alone(near.first, near.second, nobody).items():
                yield Finding("alone", test, interval)
        if not pair.grouped:
            for name, scene in scenes.items():
                for side, history in histories.items():
                    for test, interval in self._witness(scene, history).items():
                        yield Finding(f"witness of the {side}, {name}", test, interval)

    def _claim(self) -> Interval:
        """δ(ε) of the noise over the bound, by its formula and not by the package's calibration."""
        attack, reader = self.attack, self.attack.reader
        mu, epsilon = reader.bound(reader.releases) * np.sqrt(reader.streams), attack.epsilon
        mu *= reader.hidden
        delta = ndtr(mu / 2.0 - epsilon / mu) - exp(epsilon) * ndtr(-mu / 2.0 - epsilon / mu)
        return Interval(float(delta), 0.0, attack.delta * SLACK)

    def _alone(self, everybody: History, without: History, nobody: History) -> dict[str, Interval]:
        """One user among others, and alone; a user without data adds nothing at all."""
        alone = replace(everybody, silent=frozenset({*BYSTANDERS, NEWCOMER}))
        histories = everybody, without, alone, nobody
        raw = [self.attack.play(life, one, quiet=True, late=True).raw for one in histories]
        if len({numbers.shape for numbers in raw}) > 1:
            return {"releases that follow from data": Interval(1.0, 0.0, 0.0)}
        owed = np.abs((raw[0] - raw[1]) - (raw[2] - raw[3])).max(initial=0.0)
        return {
            "what others add because of this user": Interval(float(owed), 0.0, 0.0),
            "what nobody adds": Interval(float(np.abs(raw[3]).max(initial=0.0)), 0.0, 0.0),
        }

    def _witness(self, scene: Scene, history: History) -> dict[str, Interval]:
        attack, source = self.attack, Witness()
        watched = Attack(attack.pair, attack.epsilon, attack.delta, source)
        run = watched.play(scene, history, late=self.users)
        twin = attack.play(scene, history, quiet=True, late=self.users)
        claimed, (together, deviations) = attack.reader.deviations, attack.reader.draws
        drawn = by_release(source.drawn, deviations)
        other = sum(draw is None for draw in drawn)
        same = 0 < len(drawn) == len(run.keys) and run.keys == twin.keys
        if together > 1:  # somebody may have drawn for a slot that was not summed
            same = 0 < len(run.keys) <= len(drawn) / together and run.keys == twin.keys
        found = {
            "draws that are in no release, or the reverse": Interval(float(not same), 0.0, 0.0),
            "draws of another deviation": Interval(float(other), 0.0, 0.0),
        }
        if same and not other:
            noise, limit = (run.white - twin.white) * claimed, 0.5 if self.users else ROUNDED
            strange = unexplained(noise, drawn, together, limit)
            found["releases with noise that was not drawn for them"] = Interval(
                float(strange), 0.0, 0.0
            )
        return found
