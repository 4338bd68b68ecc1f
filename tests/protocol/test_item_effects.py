"""Effects of items: what they gain, that both loops agree, and that nothing of them is ever sent."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fclub
from fclub.core.items import UNIT, learn_item
from fclub.core.types import Vector
from fclub.environments.liked import Liked
from fclub.policies.federated.families import FederatedPolicy
from fclub.policies.registry import make_policy

KINDS: dict[str, dict[str, Any]] = {
    "fclub-plus": {},
    "fading": {"half_life": 20.0},
    "cdp-fclub-plus": {},
    "event": {"unit": "event"},
    "event alone": {"unit": "event", "share": False},
}


def policy_of(kind: str, **changes: Any) -> FederatedPolicy:
    name = "fclub-plus" if kind in ("fclub-plus", "fading") else "cdp-fclub-plus"
    policy = make_policy(name, **KINDS[kind] | changes)
    assert isinstance(policy, FederatedPolicy)
    return policy


@pytest.fixture
def films(tmp_path: Path) -> Liked:
    """Users with two tastes rate films at random; nobody has rated half of these before."""
    rng = np.random.default_rng(0)
    taste = np.arange(50)[:, None] % 2 == np.arange(30)[None, :] % 2
    rated = rng.random(taste.shape) < np.where(taste, 0.7, 0.5)
    stars = np.clip(rng.integers(1, 4, rated.shape) + 2 * taste, 1, 5)
    lines = [f"{user},{film},{stars[user, film]},0" for user, film in np.argwhere(rated)]
    path = tmp_path / "ratings.csv"
    path.write_text("\n".join(["userId,movieId,rating,timestamp", *lines]))
    return Liked(path=str(path), users=12, servers=3, dim=4, items=4, size=30, fresh=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_both_loops_learn_the_same(kind: str, films: Liked) -> None:
    fast, readable = policy_of(kind), policy_of(kind)
    one = fclub.simulate(fast, films, rounds=240, seed=2, record_choices=True)
    two = fclub.simulate(readable, films, rounds=240, seed=2, fast=False, record_choices=True)
    assert one == two
    np.testing.assert_array_equal(one.choices, two.choices)
    assert fast._items.effects.totals[:, 2].sum() == 240
    for name, array in fast.state()[0].items():
        np.testing.assert_array_equal(array, readable.state()[0][name], err_msg=name)


def test_where_everything_shown_shows_nothing_is_learned_of_items(films: Liked) -> None:
    """At level interactive, in worlds without a catalogue, and where it is switched off."""
    offs = policy_of("cdp-fclub-plus", level="interactive"), policy_of("fclub-plus", item_effects=False)
    for policy in offs:
        fclub.simulate(policy, films, rounds=50, seed=1)
        assert not len(policy._items.table)
    fclub.simulate(policy := policy_of("fclub-plus"), "synthetic", rounds=50, seed=1)
    assert not len(policy._items.table)


@pytest.mark.parametrize("kind", ["fclub-plus", "cdp-fclub-plus", "event"])
def test_a_saved_policy_goes_on_with_its_items(kind: str, films: Liked, tmp_path: Path) -> None:
    policy = policy_of(kind)
    fclub.simulate(policy, films, rounds=120, seed=3)
    policy.save(tmp_path / "policy.npz")
    again: Any = type(policy).load(tmp_path / "policy.npz")
    for _ in range(40):
        user, items = films.visit()
        index = policy.recommend(user, items)
        assert again.recommend(user, items) == index
        reward = films.feedback(index).reward
        for one in (policy, again):
            one.update(user, items[index], reward)
    np.testing.assert_array_equal(again._items.effects.sums, policy._items.effects.sums)


def sent_by(kind: str, films: Liked, effects: bool) -> list[bytes]:
    """All that is sent if everybody is shown the same items, whatever the policy says."""
    films.start(5)
    policy = policy_of(kind, item_effects=effects, **SCHEDULES[kind])
    policy.start(films.problem, films.server_of, seed=7)
    rng = np.random.default_rng(1)
    for _ in range(480):
        user, items = films.visit()
        policy.recommend(user, items)
        index = int(rng.integers(len(items)))
        policy.update(user, items[index], films.feedback(index).reward)
    link: Any = policy.federation.link
    return [one.data for one in link.sent]


SCHEDULES: dict[str, dict[str, Any]] = {
    "fclub-plus": {},
    "cdp-fclub-plus": {"visits": 40.0},
    "event": {"first_release": 10},
}


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_nothing_of_items_is_sent(kind: str, films: Liked) -> None:
    sent = sent_by(kind, films, effects=True)
    assert len(sent) > 3
    assert sent == sent_by(kind, films, effects=False)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_reward_without_its_items_effect_would_show(
    kind: str, films: Liked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The obvious way to use effects, to learn what they leave of a reward, lets them leave."""

    def observe_the_rest(policy: FederatedPolicy, user: int, x: Vector, y: float) -> None:
        server, row = policy._locate(user)
        if len(policy._items.table):
            place = [*policy.servers.values()].index(server)
            bound = server.bound(row)
            learn_item(policy._items, place, x, bound.theta, y - bound.offset)
            y = min(max(y - float(policy._items.effects.sums[place].mean()) * UNIT, 0.0), 1.0)
        server.observe(row, x, y)

    monkeypatch.setattr(FederatedPolicy, "_update", observe_the_rest)
    assert sent_by(kind, films, effects=True) != sent_by(kind, films, effects=False)
