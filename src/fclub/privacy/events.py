"""A ledger in the words of dp-accounting, so that another accountant can add it up."""

from __future__ import annotations

from typing import Any

from fclub.privacy.ledger import Ledger, Stream

Event = dict[str, Any]
"""`event` names a class of dp_accounting, other keys are its arguments; `of` is what is repeated."""


def _gaussian(multiplier: float) -> Event:
    return {"event": "GaussianDpEvent", "noise_multiplier": multiplier}


def _stream_event(stream: Stream) -> Event:
    """Seen through L⁻¹ a stream is one Gaussian release whose sensitivity over deviation is μ."""
    if stream.mechanism.name == "slots":
        each = _gaussian(stream.mechanism.std / stream.sensitivity)
        return {"event": "SelfComposedDpEvent", "of": each, "count": stream.sequence}
    return _gaussian(1.0 / stream.mu)


def dp_events(ledger: Ledger) -> Event:
    """What the most exposed observation or user was in: of each epoch the most expensive stream.

    Streams of an epoch hold disjoint data, so that it costs the most expensive one; epochs compose.
    Noise is taken for Gaussian here: `distance` of the ledger is the total variation up to which that
    is so, for which δ pays beside.
    """
    dearest: dict[int, Stream] = {}
    for stream in ledger.streams.values():
        if stream.mu > 0.0:
            known = dearest.get(stream.epoch)
            dearest[stream.epoch] = stream if known is None or known.mu < stream.mu else known
    events = [_stream_event(stream) for _, stream in sorted(dearest.items())]
    return {"event": "ComposedDpEvent", "events": events}
