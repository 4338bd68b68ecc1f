"""The sentences of the pages, one for each thing that a reader may wonder about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import CDP, TRANSCRIPT, USER
from fclub.protocol.interfaces import overview
from fclub.protocol.interfaces.overview import Outlook
from fclub.service.dashboard.words import global_notes, local_notes, next_sending, promise
from fclub.service.settings import Model

from .federation import Pump


@pytest.mark.parametrize(
    ("outlook", "words"),
    [
        (Outlook(overview.VISITS_PER_USER, 1.26, 2.0, 2, 14), "Slot 3 of 14 of the plan is due once"),
        (Outlook(overview.VISITS_PER_USER, 90.0, None, 14, 14), "All 14 slots of the plan are over"),
        (Outlook(overview.OBSERVATIONS, 1200, 1320), "at 1,320 observations; now there are 1,200."),
        (
            Outlook(overview.TIME, 0.0, 86_400.0, 2, 14),
            "Slot 3 of 14 of the plan is on 1970-01-02 00:00",
        ),
        (Outlook(overview.TIME, 0.0, None, 14, 14), "All 14 slots of the plan are over"),
        (Outlook(overview.CHANGE), "once new data change its estimate"),
        (Outlook(overview.NOTHING), "has no plan"),
    ],
)
def test_a_page_says_when_a_server_sends_next(outlook: Outlook, words: str) -> None:
    assert words in next_sending(outlook)


def test_a_promise_names_its_unit_and_level() -> None:
    whole = promise(Ledger(TRANSCRIPT, 1.0, 1e-5, unit=USER))
    assert whole["covers"] == "It is about all data of one user and covers all messages, for ever."
    printed = promise(Ledger(CDP, 1.0, 0.1))
    assert printed["covers"].endswith("observation of a user and covers the values that are released.")
    assert (printed["unit"], printed["level"], printed["claimed"]) == ("event", "cdp", [1.0, 0.1])


def test_what_is_not_well_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pump = Pump(tmp_path, Model(policy="cdp-fclub-plus", dim=4), servers=2)
    node, hub = pump.locals["s0"], pump.hub
    (agreed,) = local_notes(node, {})
    assert agreed["good"]
    node.sessions.hello()
    waiting, broken = local_notes(node, {"404": 2, "500": 3})
    assert waiting["text"] == "The global server has not answered yet: nothing is released."
    assert broken["text"].startswith("3 requests failed")
    hub.peers["s1"].seen = False
    (silent,) = global_notes(hub)
    assert silent["text"] == "Nothing was heard since the start from s1."
    hub.peers["s1"].seen = True
    hub.peers["s1"].quarantined, hub.peers["s1"].offences = True, 5
    hub.peers["s0"].trouble = "another version"
    texts = [note["text"] for note in global_notes(hub)]
    assert texts == [
        "s0: another version.",
        "s1: in quarantine after 5 messages that cannot be true; find out why, then "
        "POST /v1/servers/s1/release.",
    ]
    alarmed = Outlook(overview.NOTHING, alarm="the population was not told right")
    status = replace(node.server.status(), outlook=alarmed)
    monkeypatch.setattr(type(node.server), "status", lambda server: status)
    assert local_notes(node, {})[-1]["text"] == "The population was not told right."
    assert node.books.ledger is not None
    node.books.ledger.exhausted = True
    assert "used up" in local_notes(node, {})[-1]["text"]
    pump.close()
