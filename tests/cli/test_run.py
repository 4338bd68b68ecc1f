"""`fclub run` as a user calls it."""

import json
import subprocess
import sys

from tests.conftest import Command

from fclub.cli.main import COMMANDS


def fclub(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "fclub", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


SMALL = ("--rounds", "300", "--seeds", "2", "--users", "10", "--jobs", "1")


def test_json_is_one_object_of_the_documented_shape() -> None:
    done = fclub(
        "run", "--policy", "linucb", "--policy", "cdp-fclub-dc", *SMALL, "--seed", "5", "--json"
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["seeds"] == [5, 6]
    assert summary["rounds"] == 300
    assert summary["environment"]["placement"] == "blocks"
    for entry in summary["policies"].values():
        assert list(entry) == [
            "regret",
            "reward",
            "communications",
            "clusters",
            "privacy",
            "microseconds_per_round",
            "by_visit",
            "newcomers_by_visit",
        ]
        assert set(entry["communications"]) == {"uploads", "downloads", "phases", "total", "bytes"}
        assert set(entry["clusters"]) == {"found", "true", "ari"}
        assert len(entry["regret"]["curve"]) <= 200
        assert entry["regret"]["curve"][-1][0] == 300
        visits = [k for k, _ in entry["by_visit"]]
        assert visits == list(range(1, len(visits) + 1))
        assert 30 <= len(visits) <= 50
        assert entry["newcomers_by_visit"] == []
    assert summary["policies"]["linucb"]["privacy"] is None


def test_table_and_set(command: Command) -> None:
    done = command(
        "run", "--policy", "club", *SMALL, "--set", "club.deletion=0", "--set", "env.spread=0.1"
    )
    assert done.returncode == 0, done.stderr
    assert "club" in done.stdout
    assert "regret" in done.stdout


def test_a_grid_is_a_policy_for_each_combination(command: Command) -> None:
    done = command(
        *("run", "--policy", "club", "--policy", "linucb", *SMALL, "--json"),
        *("--grid", "club.deletion=1,2", "--grid", "club.ridge=0.5,1"),
    )
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["policies"]) == [
        *(f"club deletion={d} ridge={r}" for d in (1.0, 2.0) for r in (0.5, 1.0)),
        "linucb",
    ]


def test_errors_are_one_line_with_an_exit_code(command: Command) -> None:
    for arguments, word in (
        (("run", "--policy", "lnucb"), "linucb"),
        (("run", "--users", "3"), "servers"),
        (("run", "--set", "club"), "POLICY.NAME=VALUE"),
        (("run", "--resume"), "--out"),
        (("run", "--policy", "linucb", "--grid", "linucb"), "POLICY.NAME=VALUE,VALUE"),
        (("run", "--policy", "linucb", "--grid", "club.ridge=1"), "not run"),
        (("run", "--policy", "linucb", "--grid", "linucb.ridge=1,1"), "twice"),
        (("run", "--policy", "club", "--grid", "club.ridge=1", "--set", "club.ridge=2"), "club.ridge"),
        (("run", "--backend", "mpi", "--policy", "linucb", *SMALL), "backend"),
    ):
        done = command(*arguments)
        lines = [line for line in done.stderr.splitlines() if line.startswith("fclub: ")]
        assert done.returncode == 2
        assert len(lines) == 1
        assert word in lines[0]
        assert "Traceback" not in done.stderr


def test_help_lists_every_command() -> None:
    done = fclub("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert name in done.stdout
