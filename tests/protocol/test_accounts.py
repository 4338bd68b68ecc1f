"""What the printed mechanism enters in the ledger, and that it stops at its budget."""

from typing import Any

import numpy as np
import pytest
from tests.conftest import RecordingLink
from tests.parts import edges, federated, is_a, ledger, sender

import fclub
from fclub.errors import InvalidMessage, PrivacyError
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import CDP
from fclub.protocol.exchanges import clusters as m
from fclub.protocol.exchanges.clusters import Accounts, TreeAccounts
from fclub.protocol.messages import PhaseStart

SMALL = {"users": 6, "clusters": 2, "servers": 2, "dim": 3, "items": 4, "placement": "spread"}


def accounts(std: float, ledger: Ledger | None = None) -> TreeAccounts:
    return TreeAccounts(ledger or Ledger(CDP, 1.0, 1e-5), uploads=7, std=std, dim=3, name="s")


def test_every_phase_is_charged_before_it_starts() -> None:
    trace = fclub.simulate("cdp-fclub-dc", "synthetic", 300, seed=1)
    report = trace.settings["privacy"]
    assert report["claimed"] == [1.0, 0.1]
    assert report["unaccounted"] == ["raw-partition", "raw-trigger"]
    assert report["spent"][0] == [0.0, 0.1], "δ = 0.1 alone allows this much"
    assert 0.0 < report["spent"][1][0] < 2.0


def test_phases_add_up_until_the_budget_is_used() -> None:
    books, phases = accounts(std=60.0), 0
    while books.admits(phases + 1):
        phases += 1
        for cluster in range(3):
            books.report(phases, cluster, 10)
            books.upload(phases, cluster, 5)
        assert books.ledger.mu == pytest.approx(np.sqrt(phases) * 2.0 * np.sqrt(4) / 60.0, rel=1e-3)
    assert phases > 1
    assert books.ledger.exhausted
    assert books.ledger.spent(1e-5) <= 1.0
    with pytest.raises(PrivacyError, match="budget"):
        books.report(phases + 1, 0, 10)


def test_a_budget_that_allows_no_phase_is_refused() -> None:
    with pytest.raises(PrivacyError, match="single phase"):
        accounts(std=0.1)


def test_what_was_never_reported_cannot_be_uploaded() -> None:
    books = accounts(std=60.0)
    with pytest.raises(PrivacyError, match="never opened"):
        books.upload(1, 0, 5)


def test_exact_statistics_are_not_charged() -> None:
    books = Accounts()
    assert books.admits(1)
    books.report(1, 0, 10)
    books.upload(1, 0, 5)
    books.catch_up(1, 0, 3, 20)


def started(**parameters: Any) -> tuple[fclub.Policy, fclub.Environment]:
    environment = fclub.make_environment("synthetic", **SMALL)
    environment.start(3)
    policy = fclub.make_policy("cdp-fclub-dc", **parameters)
    policy.start(environment.problem, environment.server_of, seed=1)
    return policy, environment


def play(policy: fclub.Policy, environment: fclub.Environment, rounds: int) -> None:
    for _ in range(rounds):
        user, items = environment.visit()
        index = policy.recommend(user, items)
        policy.update(user, items[index], environment.feedback(index).reward)


@pytest.mark.usefixtures("recorded")
def test_every_message_with_statistics_is_in_the_ledger() -> None:
    policy, environment = started()
    play(policy, environment, 150)
    sent = [s.message for s in is_a(RecordingLink, federated(policy).federation.link).sent if s.upwards]
    uploads = sum(isinstance(message, m.Upload) for message in sent)
    reported = sum(len(message.clusters) for message in sent if isinstance(message, m.Report))
    assert uploads > 5
    entered = [event for event in ledger(policy).events if event.releases]
    assert len(entered) == uploads + reported == sum(event.releases for event in entered)
    assert len(ledger(policy).streams) == reported


def test_compiled_and_readable_rounds_are_accounted_alike() -> None:
    found = []
    for fast in (False, True):
        environment = fclub.make_environment("synthetic", **SMALL)
        policy = fclub.make_policy("cdp-fclub-dc")
        fclub.simulate(policy, environment, 400, seed=2, fast=fast)
        streams = ledger(policy).streams.items()
        found.append({name: (s.epoch, s.sequence, s.observations) for name, s in streams})
    assert found[0] == found[1]
    assert any(sequence > 1 for _, sequence, _ in found[0].values())


def test_over_budget_the_servers_go_on_without_new_phases() -> None:
    """At a large ε the phases of the horizon use all of the budget."""
    policy, environment = started(epsilon=60.0, horizon=60)
    play(policy, environment, 200)
    began, spent = sender(federated(policy).servers[0]).began, ledger(policy).spent(0.1)
    assert ledger(policy).exhausted
    assert 1 <= began < federated(policy).federation.clock.phase
    assert spent <= 60.0
    play(policy, environment, 300)
    assert sender(federated(policy).servers[0]).began == began, "the clusters stay as they are"
    assert ledger(policy).spent(0.1) == spent
    assert int(edges(federated(policy).servers[0]).users.counts.sum()) > 200, "it goes on learning"


def test_a_phase_is_answered_once() -> None:
    """Asked again, a server would release the same data with fresh noise under the same epoch."""
    policy, _ = started()
    before = len(ledger(policy).events)
    with pytest.raises(InvalidMessage, match="phase 1"):
        federated(policy).servers[0].receive(PhaseStart(1))
    assert len(ledger(policy).events) == before
