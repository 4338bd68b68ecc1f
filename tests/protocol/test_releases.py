"""Per-user streams: every observation in one increment, noise in every release, ledger first."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.lattice import MOST_OBSERVATIONS, STEP, Whole, is_whole, on_grid, snap
from fclub.core.statistics import Packed, observe
from fclub.core.types import Floats
from fclub.privacy.ledger import Ledger, ReleaseEvent
from fclub.privacy.levels import level_named
from fclub.privacy.mechanisms import StreamPlan, plan_stream
from fclub.privacy.noise import SeededNoise
from fclub.privacy.sensitivity import Domain
from fclub.protocol.exchanges.releases import PrivateReleases

DIM, ROWS = 3, 2
PLAN = plan_stream(1.0, 0.1, Domain(), DIM, first=4, ratio=1.5)


class Constant:
    """Draws the same multiple of every deviation, and counts how often."""

    seeded = True

    def __init__(self, value: float) -> None:
        self.value, self.drawn = value, 0

    def integers(self, deviations: Floats) -> Whole:
        self.drawn += 1
        return np.rint(self.value * deviations).astype(np.int64)


def make(
    value: float, plan: StreamPlan = PLAN, ledger: Ledger | None = None
) -> tuple[Packed, PrivateReleases, Constant]:
    users, source = Packed.zeros(ROWS, DIM), Constant(value)
    ledger = ledger or Ledger(level_named("cdp"), 1.0, 0.1)
    return users, PrivateReleases(users, plan, source, ledger, "s"), source


def feed(users: Packed, row: int, count: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        x = rng.standard_normal(DIM)
        observe(users, row, snap(x / np.linalg.norm(x), 0.0), on_grid(float(rng.random())))


def copied(releases: PrivateReleases) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in releases.state().items()}


def assert_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), max_size=12))
def test_every_observation_enters_exactly_one_increment(visits: list[tuple[int, int]]) -> None:
    """Without noise in it, what was released is what was there at the last release, never more."""
    users, releases, _ = make(0.0)
    at_release = {0: (0, np.zeros((DIM, DIM))), 1: (0, np.zeros((DIM, DIM)))}
    for seed, (row, count) in enumerate(visits):
        feed(users, row, count, seed)
        before = releases.streams.steps.copy()
        releases.advance()
        releases.advance()
        assert np.all(releases.streams.steps - before <= 1), "a jump over several counts is one release"
        if releases.streams.steps[row] > before[row]:
            at_release[row] = (int(users.counts[row]), users.gram[row].copy())
        for r in range(ROWS):
            assert releases.released.counts[r] == at_release[r][0]
            np.testing.assert_allclose(releases.released.gram[r], at_release[r][1], atol=8 * STEP)
    entered = [event.observations for event in releases.ledger.events]
    assert sum(entered) == releases.released.counts.sum()


def test_a_released_prefix_is_the_exact_one_and_the_noise_of_its_release() -> None:
    """With every draw c deviations, prefix number k carries c·σ times the k-th row of the factor.

    On the diagonal it is √2 times as much.
    """
    users, releases, source = make(0.7)
    factor, std = PLAN.mechanism.factor(9), PLAN.mechanism.std
    diagonal = np.where(np.eye(DIM), np.sqrt(2.0), 1.0)
    for k in range(9):
        feed(users, 0, int(PLAN.schedule[k]) - int(users.counts[0]), seed=k)
        releases.advance()
        noise = 0.7 * std * factor[k].sum()
        near: dict[str, Any] = {"rtol": 0.0, "atol": 16 * STEP}
        np.testing.assert_allclose(releases.released.gram[0], users.gram[0] + noise * diagonal, **near)
        np.testing.assert_allclose(releases.released.moment[0], users.moment[0] + noise, **near)
        assert is_whole(releases.released.gram)
        assert is_whole(releases.released.moment)
        assert releases.released.counts[0] == users.counts[0]
        assert releases.noise[0] == pytest.approx(std**2 * np.sum(factor[k] ** 2))
    assert source.drawn == 9
    assert not np.any(releases.released.gram[1])
    assert releases.noise[1] == 0.0


def test_the_stated_variance_is_that_of_the_noise() -> None:
    """Off-diagonal entries of many users' released prefixes, at level 10⁻⁶."""
    users = Packed.zeros(400, DIM)
    ledger = Ledger(level_named("cdp"), 1.0, 0.1)
    releases = PrivateReleases(users, PLAN, SeededNoise(np.random.default_rng(1)), ledger, "s")
    for count in PLAN.schedule[:3]:
        users.counts[:] = count
        releases.advance()
    samples = releases.released.gram[:, *np.triu_indices(DIM, k=1)].ravel()
    ratio = samples.var() / releases.noise[0]
    assert abs(ratio - 1.0) < 5.0 * np.sqrt(2.0 / len(samples))


def test_the_schedule_is_kept_and_nothing_happens_between() -> None:
    users, releases, source = make(0.3)
    happened = []
    for count in range(1, 40):
        feed(users, 0, 1, seed=count)
        before, drawn = copied(releases), source.drawn
        releases.advance()
        if source.drawn > drawn:
            happened.append(count)
        else:
            assert_same(before, copied(releases))
    assert happened == [int(count) for count in PLAN.schedule if count < 40]


def test_sums_that_may_not_be_exact_are_not_released() -> None:
    users, releases, source = make(0.3)
    feed(users, 0, 10)
    users.counts[0] = MOST_OBSERVATIONS + 1
    releases.advance()
    assert source.drawn == 0
    assert releases.ledger.events == []
    users.counts[0] = MOST_OBSERVATIONS
    releases.advance()
    assert source.drawn == 1


def test_a_used_up_stream_releases_nothing_more() -> None:
    short = StreamPlan(PLAN.domain, DIM, PLAN.mu, PLAN.sensitivity, PLAN.mechanism, PLAN.schedule[:2])
    users, releases, source = make(0.3, short)
    for seed in range(4):
        feed(users, 0, 4, seed)
        releases.advance()
    assert source.drawn == 2
    assert releases.released.counts[0] == 8


def test_the_ledger_has_a_release_before_it_is_computed() -> None:
    """When an entry is stored, neither noise was drawn for it nor anything released."""
    seen: list[tuple[int, int]] = []

    def note(event: ReleaseEvent) -> None:
        seen.append((event.releases, source.drawn))
        assert releases.released.counts[0] + event.observations <= users.counts[0]

    users, releases, source = make(0.3, ledger=Ledger(level_named("cdp"), 1.0, 0.1, sink=note))
    for seed in range(2):
        feed(users, 0, 6, seed)
        releases.advance()
    assert seen == [(0, 0), (1, 0), (1, 1)]
    assert [event.stream for event in releases.ledger.events] == ["s/0"] * 3


def test_a_refused_release_changes_nothing() -> None:
    """A budget that is too small for the stream: no noise is drawn, nothing is released."""
    users, releases, source = make(0.3, ledger=Ledger(level_named("cdp"), 0.5, 0.1))
    feed(users, 0, 10)
    before = copied(releases)
    for _ in range(2):
        releases.advance()
        assert_same(before, copied(releases))
    assert releases.ledger.exhausted
    assert source.drawn == 0
    assert releases.ledger.events == []


def test_a_release_that_could_not_be_stored_is_made_later() -> None:
    """Storage fails after the stream was opened; the next attempt goes on where this one stopped."""
    broken = [False, True, False, False]

    def store(event: ReleaseEvent) -> None:
        if broken.pop(0):
            raise OSError("disk full")

    users, releases, _ = make(0.3, ledger=Ledger(level_named("cdp"), 1.0, 0.1, sink=store))
    feed(users, 0, 10)
    before = copied(releases)
    with pytest.raises(OSError, match="disk full"):
        releases.advance()
    assert_same(before, copied(releases))
    releases.advance()
    assert releases.released.counts[0] == 10


def test_the_constants_square_is_released_without_noise() -> None:
    domain = Domain.of(0.5)
    users, releases, _ = make(0.3, plan_stream(1.0, 0.1, domain, DIM, first=4))
    feed(users, 0, 5)
    releases.advance()
    assert releases.released.gram[0, -1, -1] == pytest.approx(users.gram[0, -1, -1])
    assert abs(releases.released.gram[0, 0, 0] - users.gram[0, 0, 0]) > 0.1


def test_restored_streams_go_on_alike() -> None:
    users, releases, _ = make(0.3)
    feed(users, 0, 20)
    releases.advance()
    other_users, other, _ = make(0.3)
    other.restore(copied(releases), other_users)
    for exact, known in zip(other_users, users, strict=True):
        exact[...] = known
    for event in releases.ledger.events:
        other.ledger.replay(event)
    for both in (users, other_users):
        feed(both, 0, 20, seed=5)
    releases.advance()
    other.advance()
    assert_same(copied(releases), copied(other))
