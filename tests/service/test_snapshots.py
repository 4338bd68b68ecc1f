"""Work in parts and snapshots by row: a restart leads to the state in which a server ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fclub.protocol.exchanges import user_streams
from fclub.protocol.interfaces import learner
from fclub.service.nodes import node as base
from fclub.service.nodes.local_node import Forget, LocalNode
from fclub.service.settings import Model

from .federation import Pump

DIM = 3
POLICIES: dict[str, dict[str, Any]] = {
    "fclub-plus": {"types": 4, "ratio": 1.2},
}
CLUSTERS: dict[str, dict[str, Any]] = {
    "cdp-fclub-plus": {"ratio": 1.2, "unit": "event", "first_release": 3, "release_ratio": 1.5},
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "PART", 5)
    monkeypatch.setattr(user_streams, "RELEASES", 2)


@pytest.fixture(params=POLICIES)
def pump(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    model = Model(policy=request.param, dim=DIM, parameters=POLICIES[request.param])
    pump = Pump(tmp_path, model, 1)
    yield pump
    pump.close()


@pytest.fixture(params=CLUSTERS)
def sampling(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Its server detects clusters, and so it stays."""
    model = Model(policy=request.param, dim=DIM, parameters=CLUSTERS[request.param])
    pump = Pump(tmp_path, model, 1)
    yield pump
    pump.close()


def visit(node: LocalNode, user: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    items = rng.uniform(-0.5, 0.5, (4, DIM))
    decision = node.recommend(f"user-{user}", items, ["a", "b", "c", "d"])
    node.rewards.feedback(decision.id, float(rng.random() < 0.5))


def write(node: LocalNode) -> None:
    """What was done so far reaches the disk, and nothing more is done."""
    changes = node.take()
    node.store.write(changes.statements)
    node.committed(changes)


def state(node: LocalNode) -> tuple[dict[str, bytes], dict[str, Any]]:
    arrays, values = node.server.state()
    return {name: array.tobytes() for name, array in arrays.items()}, values


def reopened(pump: Pump) -> LocalNode:
    """The same server after a crash."""
    pump.locals["s0"].store.close()
    pump.locals["s0"] = pump.open_local("s0")
    return pump.locals["s0"]


def rows(node: LocalNode) -> list[tuple[int, int]]:
    sql = "SELECT row, entry FROM user_rows ORDER BY row, entry"
    return node.store.reader.execute(sql).fetchall()


def play(pump: Pump, visits: int, first: int = 0, users: int = 12) -> LocalNode:
    node = pump.locals["s0"]
    for number in range(first, first + visits):
        visit(node, number % users, number)
        pump.run()
    return node


def test_a_snapshot_at_the_end_holds_users_whose_rows_wait_behind_one_who_is_forgotten(
    pump: Pump,
) -> None:
    """To forget somebody begins a snapshot of its own, whose rows are not all written at once."""
    node = play(pump, 60, users=40)
    node.journal.snapshot()
    pump.run()
    node = play(pump, 40, 60, users=40)
    node.users.forget("user-3")
    node.journal.snapshot()
    write(node)
    before = state(node)
    assert state(reopened(pump)) == before
    kept = [row for row, _ in rows(pump.locals["s0"])]
    assert set(kept) == set(range(40))
    assert kept.count(3) == 1, "nothing of an earlier snapshot"


def test_a_restart_between_any_two_parts_leads_to_the_same_state(pump: Pump) -> None:
    assert restarts_in_parts(pump) >= 6


def test_a_restart_in_the_middle_of_a_detection_of_clusters_leads_to_the_same_state(
    sampling: Pump,
) -> None:
    """Found, applied, released in part: the log leads there, and noise is drawn once."""
    assert restarts_in_parts(sampling) >= 6
    node = sampling.locals["s0"]
    assert len(node.books.messages()) == 1
    assert node.books.unaccounted() == 0


def take_part(node: LocalNode) -> None:
    part = node.part()
    if part is not None:
        part()


def check_restart(pump: Pump, saved: bool) -> None:
    """A server is the same after it was opened again: from its log, or a snapshot of just now."""
    node = pump.locals["s0"]
    if saved:
        node.journal.working = False
        node.journal.snapshot()
    write(node)
    before = state(node)
    assert state(reopened(pump)) == before


def restarts_in_parts(pump: Pump) -> int:
    """How often a server was opened again amidst its work, each time to the same bits.

    In turn from the log alone and from a snapshot that was taken there, after ever more parts.
    """
    play(pump, 20)
    times = 0
    for number in range(20, 200):
        node = pump.locals["s0"]
        visit(node, number % 12, number)
        if node.busy:
            for _ in range(1 + times // 2 % 4):
                take_part(node)
            check_restart(pump, saved=times % 2 == 1)
            times += 1
        pump.run()
    return times


def test_a_restart_before_a_report_of_the_printed_algorithm_leads_to_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub starts phases: a part waits as long as nobody takes it."""
    pump, times = Pump(tmp_path, Model(policy="fclub-dc", dim=DIM, expected_clusters=10), 1), 0
    for number in range(150):
        visit(pump.locals["s0"], number % 12, number)
        with monkeypatch.context() as patch:
            patch.setattr(LocalNode, "part", lambda self: None)
            pump.run()
        node = pump.locals["s0"]
        if node.busy:
            for _ in range(times % 3):
                take_part(node)
                visit(node, 12 + times % 2, number)
            check_restart(pump, saved=times % 2 == 1)
            times += 1
        pump.run()
    assert times > 4
    assert pump.hub.server.phase >= times
    pump.close()


def test_the_log_knows_what_came_while_a_detection_was_computed(sampling: Pump) -> None:
    """Visits, a newcomer and a forgotten user between two parts, and a restart after each."""
    play(sampling, 40)
    for number in range(40, 120):
        node = sampling.locals["s0"]
        visit(node, number % 12, number)
        taken = 0
        while node.busy:
            part = node.part()
            assert part is not None
            part()
            visit(node, (number + taken) % (12 + taken % 2), number)
            if taken == 1:
                node.users.forget(f"user-{number % 12}")
            write(node)
            before = state(node)
            node = reopened(sampling)
            assert state(node) == before
            taken += 1
        sampling.run()
    node.commit()
    assert not node.journal.erasing


def test_only_rows_that_have_changed_are_written(pump: Pump) -> None:
    node = play(pump, 60)
    node.journal.snapshot()
    pump.run()
    first = node.journal.snapshot_entry
    assert rows(node) == [(row, first) for row in range(12)]
    play(pump, 3, users=3)
    node.journal.snapshot()
    pump.run()
    second = node.journal.snapshot_entry
    assert [pair for pair in rows(node) if pair[1] > first] == [(row, second) for row in range(3)]
    play(pump, 2, users=2)
    node.journal.snapshot()
    pump.run()
    of_first = [entry for row, entry in rows(node) if row == 0]
    assert of_first == [second, node.journal.snapshot_entry], "what nothing needs any more is gone"
    before = state(node)
    assert state(reopened(pump)) == before


def test_a_snapshot_that_was_not_finished_counts_for_nothing(pump: Pump) -> None:
    play(pump, 60)
    pump.locals["s0"].journal.snapshot()
    node = play(pump, 30, first=60)
    node.journal.working = False
    node.journal.begin_saving()
    assert node.journal.save_some(5)
    write(node)
    before, whole = state(node), node.journal.snapshot_entry
    assert any(entry > whole for _, entry in rows(node))
    node = reopened(pump)
    assert state(node) == before
    assert node.journal.snapshot_entry == whole
    pump.run()
    assert all(entry <= whole for _, entry in rows(node)), "its rows are dropped"
    node = play(pump, 20, first=90)
    node.journal.snapshot()
    pump.run()
    before = state(node)
    assert state(reopened(pump)) == before


def test_snapshots_are_written_while_others_are_served(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later snapshot waits for the one before, and for a part that was taken."""
    monkeypatch.setattr(base, "SNAPSHOT_EVERY", 10)
    monkeypatch.setattr(base, "ROWS_AT_ONCE", 1)
    for number in range(150):
        node = pump.locals["s0"]
        visit(node, number % 12, number)
        part = node.part()
        if part is not None:
            part()
        node.journal.save_some(1)
        write(node)
        if number % 10 == 9:
            before = state(node)
            assert state(reopened(pump)) == before
            pump.run()
    assert pump.locals["s0"].journal.snapshot_entry > 100


def test_a_forgotten_user_leaves_no_earlier_row_and_no_log(pump: Pump) -> None:
    play(pump, 60)
    pump.locals["s0"].journal.snapshot()
    node = play(pump, 30, first=60)
    node.users.forget("user-3")
    visit(node, 4, 1)
    node.commit()
    assert not node.journal.erasing
    assert len([entry for row, entry in rows(node) if row == 3]) == 1
    sql = "SELECT count(*) FROM log WHERE kind = 'observe'"
    assert node.store.reader.execute(sql).fetchone()[0] <= 1
    before = state(node)
    node = reopened(pump)
    assert state(node) == before
    assert sum(one.users for one in node.overview()) == 11


def test_what_was_to_be_erased_when_the_server_ended_is_erased_when_it_begins(pump: Pump) -> None:
    play(pump, 60)
    pump.locals["s0"].journal.snapshot()
    node = play(pump, 30, first=60)
    node.journal.working = True
    node.journal.forgotten.clear()
    node.journal.do(Forget(3))
    name = next(name for name, row in node.users.rows.items() if row == 3)
    node.journal.changes.forget_user(3)
    write(node)
    node = reopened(pump)
    assert name not in node.users.rows
    pump.run()
    assert not node.journal.erasing
    assert len([entry for row, entry in rows(node) if row == 3]) == 1
    play(pump, 20, first=90)
