"""Detections of the printed algorithm beside serving: as if the phase had started when they end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.protocol import alone
from tests.protocol.alone import USERS, Alone
from tests.protocol.told import ids_of

from fclub.errors import InvalidMessage
from fclub.protocol.exchanges.clusters import Report
from fclub.protocol.interfaces.exchange import Beginning
from fclub.protocol.messages import PhaseStart

KINDS: dict[str, dict[str, Any]] = {"fclub-dc": {}, "cdp-fclub-dc": {}, "homo": {}}


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "PARAMETERS", KINDS)


class Printed(Alone):
    """Phases are started by the hub."""

    def work_on(self) -> None:
        while not self.server.busy:
            self.observe(int(self.rng.integers(len(self.server.counts))))
            self.hub.advance()

    @property
    def reports(self) -> list[Report]:
        return [message for message in self.link.sent if isinstance(message, Report)]


def sampled(name: str) -> Printed:
    """A partition is found and not reported yet."""
    one = Printed(name)
    one.finish()
    one.visit(40)
    one.work_on()
    one.server.part()()
    return one


@pytest.mark.parametrize("name", KINDS)
def test_parts_give_the_same_bits_as_all_at_once(name: str) -> None:
    one, other = Printed(name), Printed(name, in_parts=False)
    for each in (one, other):
        each.finish()
        each.visit(200)
        each.server.add_user()
        each.visit(60)
    assert one.same_as(other)
    assert one.link.sent == other.link.sent
    assert len(one.reports) > 3
    assert one.noise.bit_generator.state == other.noise.bit_generator.state
    assert (one.ledger is None) == (name != "cdp-fclub-dc")
    if one.ledger is not None and other.ledger is not None:
        assert one.ledger.events == other.ledger.events


@pytest.mark.parametrize("parts", range(3))
@pytest.mark.parametrize("name", KINDS)
def test_a_server_is_restored_between_any_two_parts(name: str, parts: int) -> None:
    first = Printed(name)
    first.finish()
    first.visit(30)
    first.work_on()
    for _ in range(parts):
        first.server.part()()
        first.observe(3)
    second = Printed(name).twin_of(first)
    assert first.same_as(second)
    assert first.server.busy == second.server.busy == (parts < 2)
    for each in (first, second):
        each.finish()
        each.visit(60)
    assert first.same_as(second)


@pytest.mark.parametrize("name", KINDS)
def test_a_report_holds_what_was_observed_while_it_was_prepared(name: str) -> None:
    """But not users who came meanwhile: they are guests of the largest cluster."""
    one = sampled(name)
    row = one.server.add_user()
    for user in (0, 1, row, row):
        one.observe(user)
    known = int(one.server.counts[:row].sum())
    answered = one.server.status().used
    one.server.part()()
    assert one.server.status().used > answered
    assert one.server.status().unanswered or ids_of(one.server)
    staged = one.server.exchange.staged
    if staged is not None:
        assert int(staged.totals.counts.sum()) == known
        assert len(staged.labels) == row
    if name != "homo":
        assert row in one.server.learner.detector.guests
        graph: Any = one.server.learner.detector
        assert graph.graph.users == row + 1
    one.visit(60)
    assert int(one.server.counts.sum()) == one.hub.reported + one.server.status().waiting


@pytest.mark.parametrize("name", KINDS)
def test_a_paused_server_reports_when_both_sides_agree(name: str) -> None:
    one = sampled(name)
    reports, drawn = len(one.reports), one.noise.bit_generator.state
    one.server.pause()
    one.finish()
    assert len(one.reports) == reports
    assert one.noise.bit_generator.state == drawn
    assert one.server.add_user() == USERS
    assert one.server.exchange.asked == one.hub.phase
    one.server.go_on()
    one.finish()
    assert len(one.reports) == reports + 1


@pytest.mark.parametrize("name", KINDS)
def test_a_session_that_begins_meanwhile_is_asked_anew(name: str) -> None:
    one = sampled(name)
    reports = len(one.reports)
    one.server.begin(Beginning())
    assert not one.server.busy
    one.hub.begin(0, Beginning(used=one.server.status().used))
    one.finish()
    assert len(one.reports) == reports + 1
    assert one.reports[-1].phase == one.hub.phase


def test_one_phase_is_asked_for_once_and_a_later_one_takes_its_place() -> None:
    one = sampled("fclub-dc")
    phase = one.hub.phase
    with pytest.raises(InvalidMessage, match=f"phase {phase} after"):
        one.server.receive(PhaseStart(phase))
    assert one.server.busy
    one.hub.begin_phase(phase + 3)
    reports = len(one.reports)
    one.finish()
    assert [report.phase for report in one.reports[reports:]] == [phase + 3]


def test_who_has_no_budget_left_when_it_would_report_stays_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = sampled("cdp-fclub-dc")
    reports, detector = len(one.reports), one.server.learner.detector
    monkeypatch.setattr(one.server.exchange.accounts, "admits", lambda phase: False)
    one.finish()
    assert len(one.reports) == reports
    assert one.server.learner.detector is detector


def test_who_comes_before_the_first_observation_is_one_of_those_who_are_there() -> None:
    one = Printed("fclub-dc")
    assert one.server.busy, "the first user was the answer that the hub had waited for"
    one.server.part()()
    one.server.add_user()
    one.finish()
    other = Printed("fclub-dc", in_parts=False)
    other.server.add_user()
    assert np.array_equal(one.server.learner.cluster_of, other.server.learner.cluster_of)
    assert int(one.server.exchange.reported) == USERS + 1
    graph: Any = one.server.learner.detector
    assert len(graph.graph) == USERS * (USERS + 1) // 2
