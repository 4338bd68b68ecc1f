"""Somebody who listens at a real broker learns what the wire shows in process, and notices the same."""

from __future__ import annotations

from secrets import token_hex

import pytest
from tests.attack.sabotage import (
    EVENT,
    USERS,
    Sabotage,
    data_released_twice,
    doubles,
    one_draw_for_two,
    ordered_by_rewards,
    rewards_counted,
)

from fclub.attack.brokered import Outside
from fclub.attack.live import Attack
from fclub.attack.pairs import Pair
from fclub.errors import BrokerFailed
from fclub.privacy.noise import DiscreteNoise
from fclub.service.link import broker
from fclub.service.nodes.runner import Runner


def failed(pair: Pair, budget: tuple[float, float] = (1.0, 1e-5)) -> list[str]:
    findings = Outside(Attack(pair, *budget, DiscreteNoise())).findings()
    return [f"{found.canary}: {found.test}" for found in findings if not found.passed]


@pytest.mark.parametrize("pair", [USERS, EVENT], ids=str)
def test_a_listener_hears_what_the_wire_shows(pair: Pair) -> None:
    assert failed(pair) == []


BROKEN: list[tuple[Sabotage, Pair, str]] = [
    (ordered_by_rewards, EVENT, "anything, at the broker: facts that differ"),
    (rewards_counted, USERS, "removed, at the broker: facts that differ"),
    (one_draw_for_two, EVENT, "real noise, at the broker: correlation of two releases"),
    (one_draw_for_two, USERS, "real noise, at the broker: correlation of two releases"),
    (data_released_twice, EVENT, "worst, at the broker: distance of exact twins"),
    (doubles, EVENT, "real noise, at the broker: refused messages"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "pair", "noticed"), BROKEN, ids=[f"{s.__name__} of {p}" for s, p, _ in BROKEN]
)
def test_a_listener_notices_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, sabotage: Sabotage, pair: Pair, noticed: str
) -> None:
    sabotage(monkeypatch)
    assert noticed in failed(pair)


@pytest.mark.slow
def test_a_header_that_does_not_follow_from_the_frame_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def telling(self: Runner, peer: str, frame: bytes) -> None:
        await self.wire.send(peer, frame, f"{token_hex(12)}-0")

    monkeypatch.setattr(Runner, "_send", telling)
    assert "real noise, at the broker: refused messages" in failed(EVENT)


def test_without_a_broker_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise BrokerFailed("nats-server is missing")

    monkeypatch.setattr(broker, "find_broker", missing)
    with pytest.raises(BrokerFailed):
        failed(USERS)
