"""Numbers over time in bounded space: all the time since the start, finer where it is short."""

from __future__ import annotations

from typing import Any

import msgspec

LIMIT = 600
STEP = 1.0
JITTER = 0.1
"""Part of a step by which a sample may come early."""

Sample = dict[str, float]
"""Numbers by name; `t` is when, in seconds since 1970."""


class History:
    """At most `limit` samples. When it is full every second one goes, and the step doubles."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.step = limit, STEP
        self.samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Keep the sample, unless the last one is too recent for the step."""
        if self.samples and sample["t"] - self.samples[-1]["t"] < self.step * (1.0 - JITTER):
            return
        self.samples.append(sample)
        if len(self.samples) > self.limit:
            self.samples, self.step = self.samples[::2], 2.0 * self.step

    def dump(self) -> str:
        return msgspec.json.encode({"step": self.step, "samples": self.samples}).decode()

    @classmethod
    def load(cls, text: str | None, limit: int = LIMIT) -> History:
        """What `dump` wrote, or an empty history."""
        history = cls(limit)
        if text is not None:
            saved: dict[str, Any] = msgspec.json.decode(text)
            history.step, history.samples = float(saved["step"]), list(saved["samples"])
        return history
