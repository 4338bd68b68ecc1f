"""The books of a local server in the words of the API."""

from __future__ import annotations

from functools import lru_cache

from fclub.privacy.calibration import REPORTED_DELTA, epsilon_of
from fclub.service.http.api import Budget, PrivacyView, StreamView
from fclub.service.store.books import Books


@lru_cache(maxsize=1024)
def _epsilon(mu: float, delta: float) -> float:
    """Thousands of streams have the same few costs."""
    return epsilon_of(mu, delta)


def privacy_view(books: Books) -> PrivacyView:
    """Everything that left, and what it cost by the ledger."""
    ledger = books.ledger
    if ledger is None:
        return PrivacyView(books.messages())
    epsilon, delta = ledger.claimed
    return PrivacyView(
        messages=books.messages(),
        claimed=Budget(epsilon, delta),
        spent=[Budget(_epsilon(ledger.mu, at), at) for at in (delta, REPORTED_DELTA)],
        level=ledger.level.name,
        unaccounted=sorted(str(flag) for flag in ledger.flags),
        exhausted=ledger.exhausted,
        streams=[
            StreamView(
                stream=name,
                epoch=stream.epoch,
                mechanism=stream.mechanism.name,
                releases=stream.sequence,
                observations=stream.observations,
                mu=stream.mu,
                epsilon=_epsilon(stream.mu, delta),
            )
            for name, stream in ledger.streams.items()
        ],
    )
