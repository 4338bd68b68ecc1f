"""Decisions by user: batches, crashes, clocks, forgetting; beside a search through all decisions."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from fclub.service.store import decisions
from fclub.service.store.decisions import Decisions, Offered, Shown
from fclub.service.store.store import Changes, Store

BATCH, USERS = 40, 7


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCH": BATCH, "EVERY": 4, "PORTION": 9}.items():
        monkeypatch.setattr(decisions, name, value)


class Shop:
    """Makes decisions, and loses what is not committed when it crashes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.store = Store(self.path / "store.db", "local")
        self.decisions, self.changes = Decisions(self.store), Changes()

    def crash(self) -> None:
        self.store.close()
        self.open()

    def show(self, row: int) -> None:
        key = self.decisions.new_key(f"user-{row}")
        offered = Offered(1.0, 1, b"") if key[-2] % 2 else None
        self.decisions.add(key, Shown(row, b"x"), f"item-{key[-3] % 5}", self.changes, offered)

    def commit(self) -> None:
        self.store.write(self.changes.statements)
        self.changes = Changes()

    def check(self) -> None:
        for row in range(USERS):
            sql = "SELECT id, item FROM decisions WHERE row = ? ORDER BY id"
            found = self.store.reader.execute(sql, (row,)).fetchall()
            assert [one[:2] for one in self.decisions.of_user(row)] == found
            assert self.decisions.items_of(row, 0.0) == {item for _, item in found}

    def left(self) -> list[int]:
        """Rows of the tables without a decision, which there should never be."""
        sql = "SELECT count(*) FROM {} WHERE decision NOT IN (SELECT id FROM decisions)"
        return [self.store.reader.execute(sql.format(t)).fetchone()[0] for t in ("by_user", "offers")]

    @property
    def written(self) -> int:
        return int(self.store.reader.execute("SELECT count(*) FROM by_user").fetchone()[0])


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_most_are_in_the_table_and_the_rest_is_at_hand(shop: Shop) -> None:
    for number in range(10 * BATCH):
        shop.show(number * number % USERS)
        shop.commit()
    assert 8 * BATCH <= shop.written <= 9 * BATCH
    assert shop.store.get(decisions.UNTIL)
    shop.check()
    at_hand = sum(len(shop.decisions._by_user._at_hand(row)) for row in range(USERS))
    assert at_hand <= 2 * BATCH
    shop.crash()
    shop.check()
    assert sum(len(shop.decisions._by_user._at_hand(row)) for row in range(USERS)) <= 2 * BATCH


def test_a_clock_that_was_set_back_loses_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of a new process begin with its clock, before those that the table is known to hold."""
    for clock in (2e9, 1.9e9, 1.95e9, 2.1e9):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        shop.crash()
        for number in range(5 * BATCH // 2):
            shop.show(number % USERS)
            shop.commit()
        shop.check()
    shop.crash()
    shop.check()


def test_few_decisions_after_the_clock_was_set_back_are_found_after_two_restarts(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than a batch, so that nothing but the first of them can say that there are any."""
    for number in range(3 * BATCH):
        shop.show(number % USERS)
    shop.commit()
    now = time.time()
    for back in (3600.0, 3500.0, 3400.0, 0.0):
        monkeypatch.setattr(time, "time", lambda back=back: now - back)
        shop.crash()
        shop.check()
        shop.show(1)
        shop.commit()
    shop.decisions.delete_user(1, shop.changes)
    shop.commit()
    shop.check()


def test_a_decision_without_a_reward_is_looked_at_also_after_the_clock_was_set_back(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for back in (0.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda back=back: now - back)
        shop.crash()
        shop.show(1)
        shop.commit()
        (key,) = shop.decisions.open_before(now - back + 1.0)
        shop.decisions.looked_at(key, shop.changes)
        shop.commit()
        assert shop.decisions.open_before(now - back + 1.0) == []


def test_decisions_astray_are_counted(shop: Shop) -> None:
    for number in range(5 * BATCH):
        shop.show(number % USERS)
    shop.commit()
    assert shop.decisions.astray() == 0
    gone = "SELECT decision FROM by_user WHERE row = 2 LIMIT 3"
    shop.store.write([(f"DELETE FROM by_user WHERE decision IN ({gone})", ())])
    shop.store.write([("INSERT INTO by_user VALUES (1, x'00')", ())])
    assert shop.decisions.astray() == 4


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_they_are_those_of_a_search(
    shop: Shop, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the clock is set forth and back, while the shop runs and before it begins."""
    rng, clock = np.random.default_rng(seed), 2e9
    monkeypatch.setattr(time, "time", lambda: clock)
    for _ in range(400):
        clock += float(rng.exponential(0.002))
        kinds = {"show": 0.55, "commit": 0.3, "crash": 0.05, "old": 0.04, "user": 0.03, "clock": 0.03}
        match rng.choice([*kinds], p=[*kinds.values()]):
            case "clock":
                clock += float(rng.choice([-1000.0, -30.0, -1.0, 0.01, 100.0]))
            case "show":
                for _ in range(rng.integers(1, 12)):
                    shop.show(int(rng.integers(USERS)))
            case "commit":
                shop.commit()
                shop.check()
            case "crash":
                shop.crash()
                shop.check()
            case "old":
                shop.commit()
                shop.decisions.forget(shop.decisions.made_before(clock - 0.1), shop.changes)
            case "user":
                row = int(rng.integers(USERS))
                shop.decisions.delete_user(row, shop.changes)
                shop.commit()
                assert shop.decisions.of_user(row) == []
    shop.commit()
    shop.check()
    assert shop.left() == [0, 0]
    assert shop.decisions.astray() == 0
