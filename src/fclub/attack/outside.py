"""What somebody hears who listens at the broker: the same as the wire shows in process, and no more.

Three histories are played without noise: two neighbours, and one that differs in everything but the
times of visits. The two neighbours are then played with real noise, once each.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from fclub.attack import statistics as st
from fclub.attack.brokered import Brokered
from fclub.attack.live import Attack
from fclub.attack.running import Running
from fclub.attack.scenes import History, brief
from fclub.attack.transcripts import Transcript
from fclub.privacy.audit import Finding, Interval
from fclub.privacy.levels import USER

COMPARED = ("Numbered",)
"""Receipts and greetings are left out: how many there are follows from the time of the network."""


class Outside:
    """An attack, carried out from the broker."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    def findings(self) -> Iterator[Finding]:
        near, *rest = self.attack.neighbours()
        other = next(neighbours.second for neighbours in rest if neighbours.factor == inf)
        histories = near.first, near.second, other
        heard = [self._play(history, True, Brokered) for history in histories]
        shown = [self._play(history, True, Running) for history in histories]
        noisy = [self._play(history, False, Brokered) for history in histories[:2]]
        tests = {
            near.name: self.attack.compare(heard[0], heard[1], near.factor),
            "anything": self.attack.compare(heard[0], heard[2], inf),
            "in process": _same(heard, shown),
            "real noise": self._examine(noisy, heard[:2]),
        }
        for name, found in tests.items():
            for test, interval in found.items():
                yield Finding(f"{name}, at the broker", test, interval)

    def _play(self, history: History, quiet: bool, kind: type[Running]) -> Transcript:
        late = self.attack.pair.unit == USER
        run = self.attack.play(brief, history, quiet, late, kind)
        return run._replace(facts=tuple(fact for fact in run.facts if fact[1] in COMPARED))

    def _examine(self, runs: list[Transcript], twins: list[Transcript]) -> dict[str, Interval]:
        """Few runs: what is tested of the noise has a distribution that needs no more."""
        found = self.attack.book(runs, twins)
        strangers = sum(run.keys != twins[0].keys for run in runs)
        found["unclaimed numbers"] = Interval(float(strangers), 0.0, 0.0)
        raw = np.concatenate([run.raw for run in runs])
        found["numbers off the lattice"] = st.off_lattice(raw)
        found["repeated numbers"] = st.repeats(raw)
        if strangers:
            return found
        noise = np.array([run.white - twin.white for run, twin in zip(runs, twins, strict=True)])
        both = noise.reshape(len(noise), -1)
        found["lowest bits"] = st.low_bits(runs[0].raw, runs[1].raw)
        found["variance of both"] = st.variance(both, len(both))
        found["ratio of variances"] = st.variance_ratio(both[:1], both[1:], 1)
        for deviations in (1.0, 2.0, 3.0):
            found[f"share beyond {deviations:g} deviations"] = st.tails(both, deviations)
        entries = noise.transpose(0, 2, 1).reshape(-1, noise.shape[1])
        found["correlation of two releases"] = st.largest_correlation(entries)
        return found


def _same(heard: list[Transcript], shown: list[Transcript]) -> dict[str, Interval]:
    """Without noise both are the same to the last bit."""
    pairs = list(zip(heard, shown, strict=True))
    facts = sum(one.facts != other.facts for one, other in pairs)
    numbers = sum(not np.array_equal(one.raw, other.raw) for one, other in pairs)
    streams = sum(one.keys != other.keys for one, other in pairs)
    counts = {"other facts": facts, "other numbers": numbers, "other streams": streams}
    return {name: Interval(float(count), 0.0, 0.0) for name, count in counts.items()}
