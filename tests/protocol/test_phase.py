"""Phases start before rounds 2^s − 1."""

from hypothesis import given
from hypothesis import strategies as st

from fclub.protocol.phase import PhaseClock


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
