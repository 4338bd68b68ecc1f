"""When to send again what was not confirmed: soon at first, then less and less often.

A broker that is slow, as one that writes everything to disk at once may be, would drown in repetitions
of what it already has.
"""

from __future__ import annotations

LONGEST = 8
"""Steps between two repetitions of a few messages, at most."""

A_STEP = 64
"""Messages that make the longest wait one step longer."""


class Patience:
    """Asked once a step about one channel."""

    def __init__(self) -> None:
        self._place: tuple[int, int] | None = None
        self._waited, self._wait = 0, 1

    def ends(self, place: tuple[int, int], waiting: int) -> bool:
        """Whether to send again; `place` is what was confirmed last, `waiting` how much was not."""
        if place != self._place or waiting == 0:
            self._place, self._waited, self._wait = place, 0, 1
            return False
        self._waited += 1
        if self._waited < self._wait:
            return False
        self._waited, self._wait = 0, min(2 * self._wait, LONGEST + waiting // A_STEP)
        return True
