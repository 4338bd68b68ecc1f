"""Long work in parts: the same sums, whatever is forgotten, paused or restored between two parts."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from tests.protocol.alone import HALF, USERS, Alone

from fclub.core.plus.type_sums import VISITS
from fclub.protocol.exchanges.rounds import TypeDigest, TypeNews
from fclub.protocol.interfaces import learner
from fclub.protocol.interfaces.exchange import Beginning
from fclub.protocol.learners.types import STEPS


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "PART", 5)


def test_parts_give_the_same_bits_as_all_at_once() -> None:
    """Both servers send the same bytes, too."""
    one, other = Alone("fclub-plus"), Alone("fclub-plus", in_parts=False)
    for alone in (one, other):
        alone.visit(150)
    assert one.same_as(other)
    assert one.link.sent == other.link.sent
    assert len(one.link.sent) > 3


def test_who_visits_between_two_parts_counts_in_the_later_one() -> None:
    alone = Alone("fclub-plus")
    alone.visit(20)
    alone.work_on()
    alone.link.deaf = True
    alone.server.part()()
    alone.observe(0)
    alone.observe(USERS - 1)
    assert alone.server.due() is None, "users are being added up"
    alone.finish()
    assert alone.server.learner.splits.sums.scalars[VISITS] == alone.server.learner.observations - 1
    assert alone.server.status().waiting == 1


@pytest.mark.parametrize("parts", range(8))
def test_a_server_is_restored_between_any_two_parts(parts: int) -> None:
    first = Alone("fclub-plus")
    first.visit(30)
    first.work_on()
    first.do_parts(parts)
    second = Alone("fclub-plus").twin_of(first)
    for alone in (first, second):
        alone.finish()
        alone.visit(60)
    assert first.same_as(second)


def test_a_user_who_is_forgotten_meanwhile_is_in_no_sum() -> None:
    alone, never = Alone("fclub-plus"), Alone("fclub-plus")
    for one in (alone, never):
        one.visit(36)
    alone.work_on()
    never.rng.bit_generator.state = alone.rng.bit_generator.state
    alone.server.part()()
    alone.server.forget(0)
    taken = alone.server.part()
    taken()
    alone.finish()
    assert not alone.server.learner.users.gram[0].any()
    assert int(alone.server.counts.sum()) == alone.server.learner.observations


def test_a_reward_is_replaced_while_users_are_added_up() -> None:
    """Before or after a user's part: what is added up next has it."""
    one, other = Alone("fclub-plus"), Alone("fclub-plus")
    x = np.array([0.1, 0.2, HALF])
    for each in (one, other):
        each.visit(30)
        each.server.observe(3, x, 1.0)
        each.work_on()
    moment = one.server.stored(3).moment
    one.server.replace(3, x, 1.0, 0.0)
    np.testing.assert_allclose(one.server.stored(3).moment, moment - x, atol=1e-12)
    other.finish()
    other.server.replace(3, x, 1.0, 0.0)
    one.finish()
    np.testing.assert_array_equal(one.server.stored(3).moment, other.server.stored(3).moment)
    assert not one.server.final_once_sent


def test_who_may_not_tell_any_more_moves_alone() -> None:
    alone = Alone("fclub-plus")
    alone.visit(30)
    alone.work_on()
    told = len(alone.link.sent)
    alone.server.pause()
    alone.finish()
    assert len(alone.link.sent) == told
    assert alone.server.exchange.step == STEPS
    alone.server.go_on()
    assert not alone.server.busy, "the next phase tells"


def test_after_no_answer_it_moves_alone_first() -> None:
    alone = Alone("fclub-plus")
    alone.visit(30)
    alone.link.deaf = True
    alone.work_on()
    alone.finish()
    assert alone.server.status().unanswered
    phase = alone.server.exchange.phase
    alone.work_on()
    alone.finish()
    assert alone.server.exchange.phase > phase
    digests = [message for message in alone.link.sent if isinstance(message, TypeDigest)]
    assert [digest.step for digest in digests[-2:]] == [0, 0]
    assert alone.server.status().unanswered


def test_paused_while_it_moves_alone_it_asks_no_more() -> None:
    alone = Alone("fclub-plus")
    alone.visit(30)
    alone.link.deaf = True
    for _ in range(2):
        alone.work_on()
        alone.server.part()()
        if _:
            alone.server.pause()
        alone.finish()
    assert len([m for m in alone.link.sent if isinstance(m, TypeDigest) and m.step == 0]) > 1
    assert not alone.server.busy


def test_what_is_owed_is_sent_once_both_sides_agree() -> None:
    alone = Alone("fclub-plus")
    alone.visit(30)
    alone.server.pause()
    alone.server.begin(Beginning(global_lost=True))
    told = len(alone.link.sent)
    assert not alone.server.busy
    alone.server.go_on()
    alone.finish()
    assert len(alone.link.sent) > told
    alone.server.begin(Beginning(global_lost=True))
    assert alone.server.busy, "it was not paused"
    alone.finish()
    assert not alone.server.exchange.owing


def with_a_late_answer() -> tuple[Alone, TypeNews]:
    """A server that has sent its sums, and the answer, which has not come."""
    alone = Alone("fclub-plus")
    alone.visit(30)
    alone.link.deaf = True
    alone.work_on()
    alone.finish()
    digest = alone.link.sent[-1]
    assert isinstance(digest, TypeDigest)
    types = digest.version, digest.ids, digest.candidates
    return alone, TypeNews(digest.phase, digest.step, 1, *types, (), b"", b"", digest.sums)


def test_a_late_answer_to_who_has_gone_on_is_of_no_use() -> None:
    alone, late = with_a_late_answer()
    alone.work_on()
    alone.server.receive(late)
    assert alone.server.busy


def test_who_begins_a_phase_while_paused_awaits_no_earlier_answer() -> None:
    alone, late = with_a_late_answer()
    assert alone.server.status().unanswered
    alone.server.pause()
    alone.work_on()
    alone.finish()
    alone.server.go_on()
    alone.server.receive(late)
    assert not alone.server.status().unanswered


def test_a_server_that_shares_nothing_learns_in_parts_too() -> None:
    one, other = Alone("fclub-plus", share=False), Alone("fclub-plus", share=False, in_parts=False)
    for alone in (one, other):
        alone.visit(60)
    assert one.same_as(other)


def test_arrays_by_user_change_only_with_their_user() -> None:
    alone = Alone("fclub-plus")
    alone.visit(40)
    names, before = alone.server.by_user, deepcopy(alone.server.state()[0])
    assert len(names) == 4
    alone.observe(7)
    alone.server.due()
    after = alone.server.state()[0]
    for key in names:
        assert len(after[key]) == USERS
        rows = {row for row in range(USERS) if not np.array_equal(before[key][row], after[key][row])}
        assert rows <= {7}
