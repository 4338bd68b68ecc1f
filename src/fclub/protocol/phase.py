"""When phases start: before round t = 2^s − 1 for s = 1, 2, …"""

from __future__ import annotations


class PhaseClock:
    """Counts observations; phase s starts once 2^s − 2 of them are complete.

    In simulation the count is the number of rounds; a live global server feeds it the reported total.
    """

    def __init__(self, phase: int = 0) -> None:
        self.phase = phase

    @property
    def next_start(self) -> int:
        """The number of completed observations at which the next phase starts."""
        return (1 << (self.phase + 1)) - 2

    def advance(self, observations: int) -> bool:
        """Whether a new phase starts now. A count that jumps over several starts only the last."""
        if observations < self.next_start:
            return False
        while observations >= self.next_start:
            self.phase += 1
        return True

    def state(self) -> list[int]:
        return [self.phase]

    def restore(self, state: list[int]) -> None:
        (self.phase,) = state


class GeometricClock:
    """Phases whose starts grow by a factor, for policies that look at all their data every time."""

    def __init__(self, first: int = 20, ratio: float = 1.1) -> None:
        self.first, self.ratio = first, ratio
        self.phase, self.next_start = 0, 0

    def advance(self, observations: int) -> bool:
        """Whether a new phase starts now."""
        if observations < self.next_start:
            return False
        while observations >= self.next_start:
            self.phase += 1
            grown = max(int(self.next_start * self.ratio), self.next_start + self.first // 2)
            self.next_start = grown if self.next_start else self.first
        return True

    def state(self) -> list[int]:
        return [self.phase, self.next_start]

    def restore(self, state: list[int]) -> None:
        self.phase, self.next_start = state
