"""When phases start, for policies that look at all their data every time."""

from __future__ import annotations


class GeometricClock:
    """Phases whose starts grow by a factor."""

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
