"""Noise that is broken in small ways which look like sound engineering, most of it of whole users.

Each is something that somebody might well write: noise that is saved where it seems to be of no use,
smoothed, cut off far out, or shared.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.attack.sabotage import EVENT, INTERACTIVE, POOLED, USERS, Sabotage

from fclub.attack.pairs import Pair
from fclub.core.types import Counts, Floats
from fclub.privacy import noise
from fclub.privacy.noise import DiscreteNoise, NoiseSource, NoNoise
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.exchanges.slots import SlotsLocal
from fclub.service.nodes.global_node import GlobalNode

slots: Any = import_module("fclub.protocol.exchanges.slots")

DIM = 8
_draw = slots.draw_whole

Draw = Callable[[NoiseSource, int, float], Counts]


def _drawn(patch: pytest.MonkeyPatch, change: Draw) -> None:
    patch.setattr(slots, "draw_whole", change)


def _silenced(patch: pytest.MonkeyPatch, places: Any) -> None:
    def partly(source: NoiseSource, entries: int, deviation: float) -> Counts:
        drawn = _draw(source, entries, deviation)
        drawn[places] = 0
        return drawn

    _drawn(patch, partly)


def count_without_noise(patch: pytest.MonkeyPatch) -> None:
    """How many users have answered looks harmless."""
    _silenced(patch, -1)


def mean_without_noise(patch: pytest.MonkeyPatch) -> None:
    """The mean of so many people says nothing about one."""
    _silenced(patch, slice(0, DIM))


def constant_without_noise(patch: pytest.MonkeyPatch) -> None:
    """With unit `event` the constant's own entry needs none."""
    _silenced(patch, DIM - 1)


def off_diagonals_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Of a triangle only the diagonal is noised."""
    rows, columns = np.triu_indices(DIM)
    _silenced(patch, DIM + np.flatnonzero(rows != columns))


def hundredth_less_noise(patch: pytest.MonkeyPatch) -> None:
    """Too little for any test of variances."""
    _drawn(patch, lambda source, entries, deviation: _draw(source, entries, 0.99 * deviation))


def tenth_less_noise(patch: pytest.MonkeyPatch) -> None:
    _drawn(patch, lambda source, entries, deviation: _draw(source, entries, 0.9 * deviation))


def cut_far_tails(patch: pytest.MonkeyPatch) -> None:
    """No draw beyond four deviations: one in 16,000 would be."""

    def cut(source: NoiseSource, entries: int, deviation: float) -> Counts:
        limit = int(4.0 * deviation)
        return np.clip(_draw(source, entries, deviation), -limit, limit)

    _drawn(patch, cut)


def neighbouring_entries_share_noise(patch: pytest.MonkeyPatch) -> None:
    """Noise that was smoothed, with the right variance of every entry."""

    def smooth(source: NoiseSource, entries: int, deviation: float) -> Counts:
        drawn = _draw(source, entries + 1, deviation).astype(np.float64)
        return np.rint(0.8 * drawn[1:] + 0.6 * drawn[:-1]).astype(np.int64)

    _drawn(patch, smooth)


def slots_share_noise(patch: pytest.MonkeyPatch) -> None:
    """A third of each slot's variance is the noise of the slot before."""
    before: dict[int, Counts] = {}

    def partly(source: NoiseSource, entries: int, deviation: float) -> Counts:
        drawn, last = _draw(source, entries, deviation), before.get(id(source))
        before[id(source)] = drawn
        if last is None:
            return drawn
        return np.rint(np.sqrt(2 / 3) * drawn + np.sqrt(1 / 3) * last).astype(np.int64)

    _drawn(patch, partly)


def _drawn_by(patch: pytest.MonkeyPatch, draw_for: Callable[[Any, int, Counts], Draw]) -> None:
    """Let the noise of a release be drawn by what `draw_for` gives for it."""
    release = SlotsLocal._release

    def drawn(self: Any, slot: int, told: int, sums: Counts) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(slots, "draw_whole", draw_for(self, slot, sums))
            release(self, slot, told, sums)

    patch.setattr(SlotsLocal, "_release", drawn)


def servers_share_noise(patch: pytest.MonkeyPatch) -> None:
    """All servers of a federation draw from one seed, which is fresh in every federation."""
    start, seed = GlobalNode.__init__, {"now": 0}

    def seeded(self: Any, *given: Any) -> None:
        start(self, *given)
        seed["now"] = int.from_bytes(self.incarnation)

    def shared(now: Any, slot: int, sums: Counts) -> Draw:
        rng = np.random.default_rng([seed["now"], slot])

        def draw(source: Any, entries: int, deviation: float) -> Counts:
            return np.rint(deviation * rng.standard_normal(entries)).astype(np.int64)

        return _draw if isinstance(now.noise.source, NoNoise) else draw

    patch.setattr(GlobalNode, "__init__", seeded)
    _drawn_by(patch, shared)


def later_slots_quieter(patch: pytest.MonkeyPatch) -> None:
    """From the third slot on a fifth less: by then there are so many visits."""

    def quieter(source: Any, entries: int, deviation: float) -> Counts:
        return _draw(source, entries, 0.8 * deviation)

    _drawn_by(patch, lambda now, slot, sums: quieter if slot >= 2 else _draw)


def no_noise_on_nothing(patch: pytest.MonkeyPatch) -> None:
    """Where nobody has data there seems to be nothing to hide."""

    def nothing(source: Any, entries: int, deviation: float) -> Counts:
        return 0 * _draw(source, entries, deviation)

    _drawn_by(patch, lambda now, slot, sums: _draw if sums.any() else nothing)


def relief_upside_down(patch: pytest.MonkeyPatch) -> None:
    """The constant's entries of a stream get half of their noise, where they should have twice."""
    start = PrivateReleases.__init__

    def eased(self: Any, *given: Any, **named: Any) -> None:
        start(self, *given, **named)
        most = float(self._deviations.max())
        self._deviations = np.where(self._deviations == most, most / 2.0, self._deviations)

    patch.setattr(PrivateReleases, "__init__", eased)


def streams_cut_far(patch: pytest.MonkeyPatch) -> None:
    """The same of streams: no draw beyond four deviations."""
    start = PrivateReleases.__init__

    class Cut:
        seeded = False

        def __init__(self, source: NoiseSource) -> None:
            self.source = source

        def integers(self, deviations: Any) -> Any:
            limit = np.floor(4.0 * deviations).astype(np.int64)
            return np.clip(self.source.integers(deviations), -limit, limit)

    def cut(self: Any, *given: Any, **named: Any) -> None:
        start(self, *given, **named)
        self.source = Cut(self.source)

    patch.setattr(PrivateReleases, "__init__", cut)


def seed_of_32_bits(patch: pytest.MonkeyPatch) -> None:
    """Fast noise, from a generator that is seeded afresh for every release. All seeds can be tried."""

    def quick(self: Any, deviations: Floats) -> Counts:
        rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
        return np.rint(deviations * rng.standard_normal(np.shape(deviations))).astype(np.int64)

    patch.setattr(DiscreteNoise, "integers", quick)


def cut_at_the_source(patch: pytest.MonkeyPatch) -> None:
    """No draw beyond four and a half deviations, for all servers and streams: δ is 0.04 then."""
    integers = DiscreteNoise.integers

    def cut(self: Any, deviations: Floats) -> Counts:
        limit = np.floor(4.5 * deviations).astype(np.int64)
        return np.clip(integers(self, deviations), -limit, limit)

    patch.setattr(DiscreteNoise, "integers", cut)


def pool_for_all_sources(patch: pytest.MonkeyPatch) -> None:
    """Draws are kept, and each source begins at the first of them."""
    integers, pool = DiscreteNoise.integers, list[tuple[bytes, Counts]]()

    def pooled(self: Any, deviations: Floats) -> Counts:
        place = self.__dict__["at"] = self.__dict__.get("at", -1) + 1
        key = np.asarray(deviations).tobytes()
        if place < len(pool) and pool[place][0] == key:
            return pool[place][1]
        pool[place:] = [(key, integers(self, deviations))]
        return pool[place][1]

    patch.setattr(DiscreteNoise, "integers", pooled)


def _other_program(patch: pytest.MonkeyPatch, change: tuple[str, str]) -> None:
    """Another program is run beside the server, in which this was changed."""
    source = noise.PROGRAM.read_text()
    assert source.count(change[0]) == 1
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    program = Path(folder) / "drawing.py"
    program.write_text(source.replace(*change))
    patch.setattr(noise, "PROGRAM", program)


def program_without_library(patch: pytest.MonkeyPatch) -> None:
    """The process that draws asks Python's generator, which the operating system seeds."""
    drawn = "[[round(random.gauss(0.0, s)) for _ in range(n)] for s, n in request['draw']]"
    line = '    return [measurement(dp, scale)([0] * count) for scale, count in request["draw"]]'
    _other_program(patch, (line, f"    import random\n    return {drawn}"))


def program_that_cuts(patch: pytest.MonkeyPatch) -> None:
    """The process that draws hands on what is within four and a half deviations."""
    before = 'measurement(dp, scale)([0] * count) for scale, count in request["draw"]'
    limited = f"[max(-4.5 * scale, min(4.5 * scale, k)).__int__() for k in {before.split(' for ')[0]}]"
    _other_program(patch, (before, f'{limited} for scale, count in request["draw"]'))


BY_WITNESS: list[tuple[Sabotage, Pair]] = [
    (seed_of_32_bits, USERS),
    (cut_at_the_source, POOLED),
    (pool_for_all_sources, USERS),
    (program_without_library, USERS),
    (cut_far_tails, USERS),
    (hundredth_less_noise, INTERACTIVE),
    (program_that_cuts, EVENT),
    (seed_of_32_bits, EVENT),
    (cut_at_the_source, INTERACTIVE),
    (pool_for_all_sources, POOLED),
    (streams_cut_far, POOLED),
    (no_noise_on_nothing, USERS),
    (count_without_noise, USERS),
    (mean_without_noise, USERS),
    (constant_without_noise, INTERACTIVE),
    (off_diagonals_without_noise, USERS),
    (tenth_less_noise, USERS),
    (neighbouring_entries_share_noise, USERS),
    (slots_share_noise, USERS),
    (servers_share_noise, USERS),
    (later_slots_quieter, USERS),
    (relief_upside_down, EVENT),
    (streams_cut_far, EVENT),
]
"""To be found in a single run: noise that is not what was drawn."""

BY_TWO: list[tuple[Sabotage, Pair]] = [(servers_share_noise, USERS)]
"""To be found where two servers run at once."""

IN_NOISE: list[tuple[Sabotage, Pair]] = [
    (neighbouring_entries_share_noise, USERS),
    (slots_share_noise, USERS),
    (tenth_less_noise, USERS),
]
"""To be found in many runs with real noise."""
