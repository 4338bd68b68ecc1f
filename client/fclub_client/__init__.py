"""Clients of a local server of fclub, blocking and not."""

from .client import (
    AsyncClient,
    Client,
    Event,
    Forgotten,
    Observation,
    Popular,
    Ranked,
    Recommendation,
    Several,
    Similar,
    Visit,
)
from .errors import RequestFailed

__all__ = [
    "AsyncClient",
    "Client",
    "Event",
    "Forgotten",
    "Observation",
    "Popular",
    "Ranked",
    "Recommendation",
    "RequestFailed",
    "Several",
    "Similar",
    "Visit",
]
