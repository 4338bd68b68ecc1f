"""Packed ids are found like the keys of a dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from fclub.service.store import ids as module
from fclub.service.store.ids import Ids


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack often."""
    monkeypatch.setattr(module, "FEW", 7)


def test_they_are_a_dictionary_and_a_list(few: None) -> None:
    rng, ids = np.random.default_rng(0), Ids()
    texts: list[str] = []
    there = np.ones(1000, dtype=np.bool_)
    rows: dict[str, int] = {}
    while len(texts) < 600:
        some = [f"ü-{k}" for k in rng.choice(300, int(rng.integers(1, 12)), replace=False)]
        for key in some:
            if key in rows:
                there[rows[key]] = False
            rows[key] = len(texts)
            texts.append(key)
        ids.extend(some)
        if rng.random() < 0.3:
            gone = str(rng.choice(list(rows)))
            there[rows.pop(gone)] = False
        asked = [f"ü-{k}" for k in range(300)] + [""]
        assert ids.find(asked, there).tolist() == [rows.get(key, -1) for key in asked]
        assert [len(ids), *ids] == [len(texts), *texts]
    assert ids[5:8] == texts[5:8]
    with pytest.raises(IndexError):
        ids[len(texts)]
    alive = np.flatnonzero(there[: len(texts)])
    kept = ids.keep(alive)
    assert list(kept) == [texts[row] for row in alive]
    assert kept.find(list(rows), np.ones(len(alive), dtype=np.bool_)).min() >= 0
    kept.extend(["new"])
    assert kept.find(["new", "none"], np.ones(len(kept), dtype=np.bool_)).tolist() == [len(alive), -1]


def test_equal_hashes_are_told_apart(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hash", lambda text: len(text), raising=False)
    ids = Ids()
    ids.extend([f"{k:02}" for k in range(30)])
    assert ids.find(["07", "29", "31", "x"], np.ones(30, dtype=np.bool_)).tolist() == [7, 29, -1, -1]
