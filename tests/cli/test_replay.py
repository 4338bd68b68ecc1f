"""`fclub replay` as a user calls it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import Command

import fclub
from fclub.environments.logs import read_log
from fclub.environments.replay import evaluate_replay

ITEMS, ROUNDS = 4, 400


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Uniformly logged: even users want even items, odd users odd ones."""
    rng = np.random.default_rng(0)
    log, items = tmp_path / "log.csv", tmp_path / "items.csv"
    with items.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["item", "kind"])
        rows.writerows([k, "even" if k % 2 == 0 else "odd"] for k in range(ITEMS))
    with log.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "item", "reward", "propensity"])
        for user, item in rng.integers(0, ITEMS, (ROUNDS, 2)):
            rows.writerow([user, item, int((user - item) % 2 == 0), 1 / ITEMS])
    return log, items


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fclub", "replay", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_it_prints_what_the_library_finds(files: tuple[Path, Path]) -> None:
    log, items = files
    done = run(log, "--items", items, "--policy", "linucb", "--set", "linucb.exploration=0.5", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["linucb"]
    policy = fclub.make_policy("linucb", exploration=0.5)
    truth = evaluate_replay(policy, read_log(log, items))
    assert found["replay"]["value"] == truth.replay.value
    assert found["replay"]["value"] > found["logged"]["high"], "it learns who wants what"
    assert found["kept"] == truth.kept


def test_the_table_has_a_row_per_policy(files: tuple[Path, Path], command: Command) -> None:
    log, items = files
    done = command("replay", log, "--items", items, "--policy", "linucb", "--policy", "club")
    assert done.returncode == 0, done.stderr
    for word in ("what was logged", "linucb", "club", "95 % confidence"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--set", "env.users=3"], "a log has no parameters"), (["--set", "club.x=1"], "not run")],
)
def test_errors_are_one_line(
    files: tuple[Path, Path], command: Command, words: list[str], text: str
) -> None:
    log, items = files
    done = command("replay", log, "--items", items, "--policy", "linucb", *words)
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
