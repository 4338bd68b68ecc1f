"""Phases start before rounds 2^s − 1, or at counts that grow by a ratio."""

from hypothesis import given
from hypothesis import strategies as st

from fclub.protocol.exchanges.clusters import PhaseClock
from fclub.protocol.phase import GeometricClock


def test_first_rounds_of_the_phases() -> None:
    clock, starts = PhaseClock(), []
    for completed in range(200):
        if clock.advance(completed):
            starts.append((clock.phase, completed + 1))
    assert starts == [(s, 2**s - 1) for s in range(1, 8)]


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50))
def test_a_count_that_jumps_starts_only_the_last_phase(jumps: list[int]) -> None:
    clock, total = PhaseClock(), 0
    for jump in jumps:
        total += jump
        before = clock.phase
        assert clock.advance(total) == (clock.phase > before)
        assert 2**clock.phase - 2 <= total < clock.next_start == 2 ** (clock.phase + 1) - 2


def test_geometric_phases_start_at_once_and_grow_by_their_ratio() -> None:
    clock, starts = GeometricClock(first=20, ratio=1.5), []
    for completed in range(300):
        if clock.advance(completed):
            starts.append(completed)
    assert starts == [0, 20, 30, 45, 67, 100, 150, 225]
    assert clock.phase == len(starts)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50), st.floats(1.01, 3.0))
def test_a_geometric_clock_is_always_ahead(jumps: list[int], ratio: float) -> None:
    clock, total = GeometricClock(ratio=ratio), 0
    for jump in jumps:
        total += jump
        before = clock.phase
        assert clock.advance(total) == (clock.phase > before)
        assert clock.next_start > total
