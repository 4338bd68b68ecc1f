"""Two kinds of attacks on a running system, whatever its policy, unit and level.

*Exact twins* run two neighbours without any noise. What they send shows exactly how far one person or
one visit moves every number, which must not be further than the noise is calibrated for, and whatever
carries no noise must be the same. *Real noise* runs the same servers as a deployment does, many times,
and looks at the noise alone (what was sent minus what the twin sends) and at whether neighbours can be
told apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np

from fclub.attack import statistics as st
from fclub.attack.pairs import Pair
from fclub.attack.running import Running
from fclub.attack.scenes import (
    BYSTANDERS,
    History,
    Neighbours,
    Scene,
    brief,
    neighbours_of,
    printed,
    scenes_of,
)
from fclub.attack.transcripts import Reader, Transcript, whiten_printed
from fclub.core.types import Floats
from fclub.parameters import Parameter
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.levels import USER
from fclub.privacy.noise import NoiseSource, NoNoise
from fclub.service.nodes.parts import family_of

NUMBERS = 10_000
"""Noised numbers of each neighbour: enough to see a deviation that is 5 % too large or too small."""

LEAST_RUNS = 50
"""Of each neighbour: correlations of fewer are not nearly normal."""

SLACK = 1.0 + 1e-6
"""Twins are computed in doubles."""

Progress = Callable[[str], None]


class Attack:
    """One promise at one budget; without a source every run makes its own, as a deployment does.

    `more` are further parameters of the policy.
    """

    def __init__(
        self,
        pair: Pair,
        epsilon: float,
        delta: float,
        source: NoiseSource | None = None,
        more: dict[str, Parameter] | None = None,
    ) -> None:
        self.pair, self.source, self.epsilon, self.delta = pair, source, epsilon, delta
        self.model = pair.model(epsilon, delta)
        self.model.parameters.update(more or {})
        self.reader = Reader(pair, family_of(self.model))

    def play(
        self,
        scene: Scene,
        history: History,
        quiet: bool = False,
        late: bool = False,
        kind: type[Running] = Running,
    ) -> Transcript:
        """One run on fresh stores."""
        source = NoNoise() if quiet else self.source
        with tempfile.TemporaryDirectory(dir=memory()) as folder:
            with closing(kind(Path(folder), self.model, source, not quiet, late)) as running:
                scene(running, history, self.pair)
                running.finish()
            return self.reader.read(running)

    def neighbours(self) -> list[Neighbours]:
        return neighbours_of(self.pair, self.reader.domain, self.reader.dim)

    def twins(self) -> Iterator[Finding]:
        """All scenes and neighbours without noise. The printed trigger needs its noise: it has none.

        Answers come late where contributions are taken at what was answered: the bound is on what one
        user changes given everything that was sent before, and without noise that would differ.
        """
        late = self.pair.unit == USER
        for name, scene in scenes_of(self.pair).items():
            for neighbours in self.neighbours():
                first = self.play(scene, neighbours.first, quiet=True, late=late)
                second = self.play(scene, neighbours.second, quiet=True, late=late)
                for test, interval in self.compare(first, second, neighbours.factor).items():
                    yield Finding(f"{neighbours.name}, {name}", test, interval)

    def compare(
        self,
        first: Transcript,
        second: Transcript,
        factor: float,
        others: Iterable[str] = BYSTANDERS,
    ) -> dict[str, Interval]:
        """Two neighbours without noise; `factor` as in `Neighbours`."""
        found = self.book([first, second], [])
        if factor < inf and first.keys == second.keys:
            moved = float(np.linalg.norm(first.white - second.white))
            most = max([first.keys.count(key) for key in set(first.keys)], default=1)
            if self.pair.unit == USER:
                most = len(first.keys)
            limit = factor * self.reader.bound(most) * SLACK
            found["distance of exact twins"] = Interval(moved, 0.0, limit)
            spent = factor * min(first.spent, second.spent) * SLACK
            found["distance beyond the ledger"] = Interval(moved, 0.0, spent)
            if self.pair.unit == USER:
                furthest = max(np.linalg.norm(first.white - second.white, axis=1), default=0.0)
                limit = factor * self.reader.bound(1) * SLACK
                found["distance in one release"] = Interval(float(furthest), 0.0, limit)
            otherwise = sum(first.served.get(user) != second.served.get(user) for user in others)
            found["others served otherwise"] = Interval(float(otherwise), 0.0, 0.0)
        elif factor < inf:
            found["numbers in other streams"] = Interval(1.0, 0.0, 0.0)
        return found

    def book(self, runs: list[Transcript], twins: list[Transcript]) -> dict[str, Interval]:
        """What holds for every run: no fact depends on data, and every release is charged, once."""
        worth = self.reader.streams
        uncharged = [max(0, worth * len(run.keys) - run.charged) for run in runs]
        again = [len(run.keys) - len(set(run.keys)) for run in runs if self.pair.unit == USER]
        counts = {
            "runs without a release": sum(not run.keys for run in runs),
            "uncharged releases": max(uncharged),
            "slots used again": max(again, default=0),
            "refused messages": max(run.refused for run in runs),
        }
        found = {"facts that differ": _differing(runs + twins)}
        found |= st.masks(b"".join(run.masked for run in runs + twins))
        return found | {name: Interval(float(n), 0.0, 0.0) for name, n in counts.items()}

    def noise(self, numbers: int, progress: Progress) -> Iterator[Finding]:
        """The first neighbours and scene with real noise, as often as so many numbers need."""
        scene, neighbours = printed if self.pair.printed else brief, self.neighbours()[0]
        histories, late = (neighbours.first, neighbours.second), self.pair.unit == USER
        probe = self.play(scene, histories[0], late=late)
        if not probe.keys:
            yield Finding(neighbours.name, "runs without a release", Interval(1.0, 0.0, 0.0))
            return
        runs = max(LEAST_RUNS, ceil(numbers / probe.white.size))
        sides: list[list[Transcript]] = []
        for history in histories:
            sides.append([])
            for _ in range(runs):
                sides[-1].append(self.play(scene, history, late=late))
                progress(str(self.pair))
        twins = None
        if not self.pair.printed:
            twins = [self.play(scene, history, quiet=True, late=late) for history in histories]
        for test, interval in self._examine(sides, twins).items():
            yield Finding(f"{neighbours.name}, real noise", test, interval)

    def _examine(
        self, sides: list[list[Transcript]], twins: list[Transcript] | None
    ) -> dict[str, Interval]:
        runs = [*sides[0], *sides[1]]
        found = self.book(runs, twins or [])
        keys = (twins or runs)[0].keys
        strangers = sum(run.keys != keys for run in runs)
        found["unclaimed numbers"] = Interval(float(strangers), 0.0, 0.0)
        raw = np.concatenate([run.raw for run in runs])
        found["numbers off the lattice"] = st.off_lattice(raw)
        found["repeated numbers"] = st.repeats(raw)
        if strangers:
            return found
        whites = [self._white(side, keys) for side in sides]
        means = [twin.white.ravel() for twin in twins] if twins else [w.mean(axis=0) for w in whites]
        first, second = (white - mean for white, mean in zip(whites, means, strict=True))
        freedom = len(first)
        if twins is None:
            first, second = (side * np.sqrt(freedom / (freedom - 1)) for side in (first, second))
        both = np.concatenate([first, second])
        found["lowest bits"] = st.low_bits(*(_raw(side) for side in sides))
        found["variance of the first"] = st.variance(first, freedom)
        found["variance of the second"] = st.variance(second, freedom)
        found["variance of both"] = st.variance(both, 2 * freedom)
        found["ratio of variances"] = st.variance_ratio(first, second, freedom)
        shaped = both.reshape(2 * freedom, len(keys), -1)
        for axis, what in ((1, "release"), (2, "entry")):
            quietest, loudest = st.extreme_variances(shaped, axis)
            found[f"variance of the quietest {what}"] = quietest
            found[f"variance of the loudest {what}"] = loudest
        found["correlation of two numbers"] = st.largest_correlation(both)
        for axis, what in ((1, "releases"), (2, "entries")):
            each = np.moveaxis(shaped, axis, 2).reshape(-1, shaped.shape[axis])
            found[f"correlation of two {what}"] = st.largest_correlation(each)
        found["correlation at a distance"] = st.at_a_distance(both)
        same = sum(st.same_bytes([run.nonces for run in side]) for side in sides)
        found["bytes of greetings that are not random"] = Interval(float(same), 0.0, 0.0)
        found["least eigenvalue"], found["largest eigenvalue"] = st.eigenvalues(both, 2 * freedom)
        for deviations in (1.0, 2.0, 3.0):
            found[f"share beyond {deviations:g} deviations"] = st.tails(both, deviations)
        mu, (one, two) = self._claimed(keys), whites
        if twins:
            found["mean of a number"] = st.largest_mean(both)
            found["μ by likelihood ratio"] = st.by_likelihood(one, two, means[1] - means[0], mu)
        found["μ by discriminant"] = st.by_discriminant(one, two, mu)
        found["μ by squares"] = st.by_squares(one, two, mu)
        return found

    def _claimed(self, keys: tuple[Any, ...]) -> float:
        """What the family says that a stream costs, over all phases that were played."""
        family: Any = self.reader.family
        phases = sum(key[0] == "Report" for key in keys) if self.pair.printed else 1
        return float(family.price().stream * np.sqrt(phases))

    def _white(self, side: list[Transcript], keys: tuple[Any, ...]) -> Floats:
        white = np.array([run.white for run in side])
        if self.pair.printed:
            family: Any = self.reader.family
            white = whiten_printed(white, keys, family.bounds.noise_std, self.reader.dim, family)
        return np.asarray(white.reshape(len(side), -1))


def _raw(side: list[Transcript]) -> Floats:
    return np.concatenate([run.raw for run in side])


def _differing(runs: list[Transcript]) -> Interval:
    """Runs whose facts are not those of the first."""
    return Interval(float(sum(run.facts != runs[0].facts for run in runs)), 0.0, 0.0)


def memory() -> str | None:
    """Where stores of attacks are: in memory if the system has such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
