"""Shards of one site tell each other exact sums: types move by them, and nothing that leaves does."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.protocol.alone import DIM, USERS, Alone

from fclub.errors import InvalidMessage
from fclub.protocol.plus.site import Site
from fclub.protocol.plus.type_messages import write_sums
from fclub.protocol.plus.user_local import TELL_AFTER, Counted, UserLocal
from fclub.protocol.seam import Heard

SLOTS: dict[str, Any] = {"unit": "user", "level": "transcript"}


def shard(seed: int, visits: int = 200, **parameters: Any) -> Alone:
    """A shard that knows none of the others yet."""
    alone = Alone("cdp-fclub-plus", **(SLOTS | parameters))
    alone.rng = np.random.default_rng(seed)
    alone.visit(visits)
    return alone


def grown(alone: Alone) -> UserLocal:
    assert isinstance(alone.inside, UserLocal)
    return alone.inside


def told_by(alone: Alone) -> bytes:
    told = alone.server.told
    assert isinstance(told, bytes)
    assert told
    return told


def test_sums_of_shards_add_up_and_are_replaced() -> None:
    one, two = grown(shard(1)), grown(shard(2))
    site = Site(one.rules.types, one.rules.dim)
    assert (site.users, site.shards) == (0, [])
    assert site.hear(1, told_by(shard(1))) is Heard.NEWS
    assert site.hear(2, told_by(shard(2))) is Heard.NEWS
    expected = write_sums(one.sums) + write_sums(two.sums)
    assert np.array_equal(write_sums(site.sums), expected)
    assert (site.users, site.shards) == (2 * USERS, [1, 2])
    assert site.hear(1, told_by(shard(1))) is Heard.NOTHING, "the same again"
    assert site.hear(1, told_by(shard(2))) is Heard.NEWS
    assert np.array_equal(write_sums(site.sums), 2.0 * write_sums(two.sums))
    assert site.hear(1, b"") is Heard.INSTEAD, "taken back"
    assert site.hear(1, b"") is Heard.NOTHING
    assert np.array_equal(write_sums(site.sums), write_sums(two.sums))
    assert site.users == USERS


def test_what_no_shard_can_tell_is_refused_and_changes_nothing() -> None:
    told = told_by(shard(1))
    users, gone, sums = msgspec.msgpack.decode(told)
    site = Site(4, 3)
    site.hear(1, told)
    before = write_sums(site.sums)
    for wrong in (
        b"no message",
        msgspec.msgpack.encode([users, users + 1, sums]),
        msgspec.msgpack.encode([users, gone, sums[8:]]),
        msgspec.msgpack.encode([users, gone, np.full(len(sums) // 8, np.nan).tobytes()]),
        msgspec.msgpack.encode([users, gone, (-np.ones(len(sums) // 8)).tobytes()]),
    ):
        with pytest.raises(InvalidMessage):
            site.hear(2, wrong)
    assert np.array_equal(write_sums(site.sums), before)
    assert site.shards == [1]


def test_types_move_by_the_sums_of_other_shards() -> None:
    """A shard that hears of nobody's users moves as if it were alone; of somebody's, further."""
    alone, with_others = shard(1), shard(1)
    assert with_others.server.hear(1, told_by(shard(2))) is Heard.NEWS
    for one in (alone, with_others):
        one.visit(60)
    before, after = grown(alone).beliefs, grown(with_others).beliefs
    assert after.users.sum() == pytest.approx(2.0 * before.users.sum(), rel=0.2)
    assert np.trace(after.uncertainty.mean(axis=0)) < np.trace(before.uncertainty.mean(axis=0))
    row = next(one for one in with_others.server.overview() if one.others)
    assert row.shared_by == 2


def test_nothing_that_leaves_depends_on_them() -> None:
    """Releases are the same bytes whatever other shards have told, for the same visits and noise."""
    alone, with_others = shard(1, visits=0), shard(1, visits=0)
    for number in range(12):
        assert with_others.server.hear(1, told_by(shard(2 + number, 100))) is Heard.NEWS
        for one in (alone, with_others):
            one.visit(40)
    assert alone.link.sent
    assert with_others.link.sent == alone.link.sent
    assert with_others.ledger is not None
    assert alone.ledger is not None
    assert with_others.ledger.events == alone.ledger.events
    assert not np.array_equal(grown(alone).beliefs.centres, grown(with_others).beliefs.centres)


def test_who_serves_from_released_values_only_tells_nothing() -> None:
    alone = Alone("cdp-fclub-plus", unit="user", level="interactive")
    alone.visit(100)
    assert alone.server.told is None


def test_a_server_with_few_users_neither_tells_nor_hears() -> None:
    alone = Alone("cdp-fclub-plus", **(SLOTS | {"few": USERS}))
    alone.visit(60)
    assert alone.server.told is None
    assert alone.server.hear(1, told_by(shard(1))) is Heard.NOTHING
    assert alone.server.heard == []


def test_a_forgotten_user_is_in_no_sums_that_are_told() -> None:
    """A phase makes new sums soon where others miss them, and says that older ones are outdated."""
    alone, other = shard(1, ratio=9.0), shard(2)
    before = told_by(alone)
    assert other.server.hear(0, before) is Heard.NEWS
    alone.server.forget(3)
    assert alone.server.told == b""
    assert not alone.server.busy, "nobody misses them"
    alone.server.hear(1, told_by(other))
    alone.visit(TELL_AFTER)
    assert alone.server.told == b""
    alone.server.forget(4)
    alone.visit(TELL_AFTER - 1)
    assert alone.server.told == b"", "more may be forgotten"
    alone.server.forget(5)
    again = Alone("cdp-fclub-plus", **(SLOTS | {"ratio": 9.0})).twin_of(alone)
    for one in (alone, again):
        one.visit(1)
    assert again.same_as(alone)
    assert other.server.hear(0, told_by(alone)) is Heard.INSTEAD
    assert other.server.hear(0, told_by(alone)) is Heard.NOTHING
    assert other.server.hear(0, b"") is Heard.INSTEAD
    assert other.server.heard == []
    users, forgotten, _ = msgspec.msgpack.decode(told_by(alone))
    assert (users, forgotten) == (USERS, 3)
    assert Site(4, DIM).hear(0, before) is Heard.NEWS


def test_sums_that_a_phase_has_made_meanwhile_are_not_made_again() -> None:
    alone = shard(1)
    alone.server.hear(1, told_by(shard(2)))
    alone.server.forget(3)
    alone.visit(TELL_AFTER - 1)
    made = told_by(alone)
    assert grown(alone).tell_again > 0
    alone.visit(1)
    assert (alone.server.told, grown(alone).tell_again) == (made, 0)


def test_sums_of_a_shard_that_was_restored_take_the_place_of_later_ones() -> None:
    alone = shard(1)
    earlier = told_by(alone)
    alone.server.forget(3)
    grown(alone).sums = grown(shard(1)).sums
    site = Site(4, DIM)
    assert site.hear(0, told_by(alone)) is Heard.NEWS
    assert site.hear(0, earlier) is Heard.INSTEAD


def test_sums_of_an_older_file_are_not_told() -> None:
    """They may hold users who were forgotten."""
    first = shard(1)
    arrays, values = first.server.state()
    del values["forgotten"]
    second = Alone("cdp-fclub-plus", **SLOTS)
    second.server.restore(arrays, values)
    assert second.server.told == b""


def test_users_of_shards_are_not_counted_in_releases_as_well() -> None:
    """Whatever comes first, the release that holds their noised sums or these sums themselves."""
    first, then = shard(1), shard(1)
    sums = grown(first).others
    for one in (first, then):
        inside = grown(one)
        inside.others = inside.others._replace(visits=inside.others.visits + 60.0)
        inside._counted = Counted(3 * USERS, USERS, 0)
    assert sums is not grown(first).others
    grown(first).hear(1, told_by(shard(2)))
    expected = 0.5 * grown(then).others.visits + grown(first).site.sums.visits
    assert np.allclose(grown(first).beyond.visits, expected), "two of three thirds were others'"
    assert np.allclose(grown(then).beyond.visits, grown(then).others.visits)


def test_what_was_told_is_part_of_the_state() -> None:
    first = shard(1)
    first.server.hear(1, told_by(shard(2)))
    second = Alone("cdp-fclub-plus", **SLOTS).twin_of(first)
    assert second.same_as(first)
    assert grown(second).site.users == USERS
    for one in (first, second):
        one.visit(60)
    assert second.same_as(first)
