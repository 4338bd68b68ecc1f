"""Attacks on numbers rather than on noise: low bits of sums, and lattices that data are not on.

Both look at the wire of a real local server: what `PrivateReleases` computes from what the server has
observed. Each named the right neighbour with sums and noise in doubles.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2_contingency

from fclub.core.lattice import STEP, is_whole
from fclub.core.statistics import Packed
from fclub.privacy.audit import Data, canaries
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import CDP
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.privacy.noise import DiscreteNoise, NoiseSource, NoNoise
from fclub.privacy.sensitivity import Domain, released_entries
from fclub.protocol.exchanges.releases import PrivateReleases
from fclub.protocol.families import make_family
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.link import InProcessLink

DIM, COUNT = 3, 4
RNG = np.random.default_rng(0)
Entries = NDArray[np.float64]


def observed(data: Data, users: int) -> Packed:
    """So many users of a private server, each of whom has made these observations."""
    family = make_family("cdp-fclub-plus", Shape(DIM, clusters=1), {"unit": "event"})
    place = Place(
        "0", InProcessLink(family.decode).uplink(0), NoNoise(), family.ledger(seeded=True), RNG
    )
    server: Any = family.local_server(place, family.users(users), live=False)
    for user in range(users):
        for x, y in zip(data.features, data.rewards, strict=True):
            server.observe(user, x, float(y))
    sums: Packed = server.learner.users
    return sums


def released(data: Data, users: int, plan: StreamPlan, source: NoiseSource) -> Entries:
    """The first release of every user's stream, one row each."""
    releases = PrivateReleases(observed(data, users), plan, source, Ledger(CDP, 1.0, 0.1), "s")
    releases.advance()
    assert releases.released.counts.tolist() == [COUNT] * users
    return released_entries(releases.released.gram, releases.released.moment)


def trailing_zeros(entries: Entries) -> NDArray[np.int64]:
    """Of the whole number of steps, at most 12; −1 for what is no whole number."""
    steps = entries / STEP
    found = np.full(entries.shape, -1)
    fine = steps == np.rint(steps)
    for power in range(13):
        found[fine & (np.rint(steps / 2.0**power) * 2.0**power == steps)] = power
    return found


def test_low_bits_of_a_sum_do_not_tell_what_was_in_it() -> None:
    """The `gram` canary moves one-hot features: zeros on one side, where doubles keep low bits."""
    plan = plan_stream(1.0, 1e-5, Domain(), DIM, first=COUNT)
    canary = next(one for one in canaries(Domain(), DIM, COUNT) if one.name == "gram")
    source, users = DiscreteNoise(), 1_000
    sides = [released(side, users, plan, source) for side in (canary.first, canary.second)]
    counts = []
    for side in sides:
        assert is_whole(side), "no entry has a bit below a step"
        zeros = trailing_zeros(side)
        counts.append(np.array([np.bincount(column, minlength=13) for column in zeros.T]))
    for first, second in zip(*counts, strict=True):
        table = np.array([first, second])
        table = np.column_stack([table[:, :6], table[:, 6:].sum(axis=1)])
        assert chi2_contingency(table).pvalue > 1e-6


def test_the_bits_of_doubles_would_have_told() -> None:
    """The same attack on the same canary, with sums and noise in doubles: the test above is one."""
    rng, plan = np.random.default_rng(1), plan_stream(1.0, 1e-5, Domain(), DIM, first=COUNT)
    noise = plan.mechanism.std * rng.standard_normal(400_000)
    small = noise[np.abs(noise) < 2.0**-6]
    on_zero, on_one = small + 0.0, small + 1.0
    fine = 2.0**-54
    assert np.any(on_zero / fine != np.rint(on_zero / fine))
    assert not np.any(on_one / fine != np.rint(on_one / fine))


@pytest.mark.parametrize("budget", [(0.01, 1e-9), (1.0, 1e-5)])
def test_features_of_many_bits_do_not_name_themselves(budget: tuple[float, float]) -> None:
    """An attacker tries which candidate leaves lattice noise when its own sums are taken away.

    With data that are not on the noise's lattice the right one always does, and the wrong one never.
    """
    plan = plan_stream(*budget, Domain(), DIM, first=COUNT)
    rng, source, trials = np.random.default_rng(3), DiscreteNoise(), 100
    vectors = rng.standard_normal((2, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sides = [Data(np.tile(x, (COUNT, 1)), np.full(COUNT, sqrt(0.5))) for x in vectors]
    right = 0
    for side in (0, 1):
        found = released(sides[side], trials, plan, source)
        raw = [released_entries(COUNT * x[:, None] * x, COUNT * sqrt(0.5) * x) for x in vectors]
        for entries in found:
            assert is_whole(entries)
            fits = [is_whole(entries - candidate) for candidate in raw]
            guess = fits.index(True) if sum(fits) == 1 else int(rng.integers(2))
            right += guess == side
    assert abs(right - trials) < 5.0 * sqrt(2 * trials) / 2.0, "half of the guesses"
