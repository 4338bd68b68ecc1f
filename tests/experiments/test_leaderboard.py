"""The leaderboard: what is recorded is what the suite gives, ranks and intervals are the textbook's."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from fclub.cli.leaderboard import app
from fclub.errors import InvalidFile
from fclub.experiments.leaderboard import page, ranks, record, suite
from fclub.experiments.leaderboard.record import Cell, LeaderboardRecord

ROOT = Path(__file__).parents[2]


def board(**regret: list[float]) -> LeaderboardRecord:
    """A record of two worlds; in the second all regrets are doubled."""
    seeds = tuple(range(len(next(iter(regret.values())))))

    def cell(name: str, values: list[float], scale: float) -> Cell:
        spent = 1.0 if name == "cdp" else None
        return Cell(tuple(scale * v for v in values), (1.0,), 10.0, 2e6, spent, 4.0 * len(name))

    cells = {
        world: {name.replace("_", "-"): cell(name, v, scale) for name, v in regret.items()}
        for world, scale in (("few", 1.0), ("many", 2.0))
    }
    return LeaderboardRecord(suite.VERSION, suite.digest(), "0.1.0", seeds, (1,), cells)


BOARD = board(linucb=[100.0, 110.0, 90.0], mine=[50.0, 60.0, 40.0], cdp=[95.0, 120.0, 85.0])


def test_relative_regret_has_the_paired_interval_of_students_t() -> None:
    logs = np.log([0.5, 60 / 110, 40 / 90])
    low, high = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    found = ranks.in_world(BOARD, "few")["mine"]
    np.testing.assert_allclose(found, np.exp([logs.mean(), low, high]))


def test_ranks_are_by_the_geometric_mean_over_worlds_and_say_what_is_settled() -> None:
    lines = ranks.ranks(BOARD)
    assert [line.policy for line in lines] == ["mine", "cdp", "linucb"]
    assert [line.place for line in lines] == [1, 2, 3]
    logs = np.log(np.array([95.0, 120.0, 85.0]) / [50.0, 60.0, 40.0])
    behind = lines[1].behind
    assert behind is not None
    np.testing.assert_allclose(behind.mean, np.exp(logs.mean()))
    assert [line.settled for line in lines] == [True, True, False]
    assert lines[1].epsilon == 1.0
    assert lines[0].epsilon is None
    assert lines[0].time == pytest.approx(4 / 6)


def test_one_seed_has_no_interval() -> None:
    assert ranks.interval(np.array([0.0])) == (1.0, 1.0, 1.0)


def test_seeds_and_policies_of_records_are_put_together() -> None:
    one = board(linucb=[100.0], mine=[50.0])
    two = board(linucb=[110.0, 90.0], mine=[60.0, 40.0])
    both = record.extend(one, two)
    assert both.cells["many"]["mine"].regret == (100.0, 120.0, 80.0)
    assert both.cells["few"]["linucb"].messages == 10.0
    other = record.merge(both, board(better=[1.0, 2.0, 3.0]))
    assert other.policies == ["linucb", "mine", "better"]


def test_the_page_has_every_policy_in_every_world(tmp_path: Path) -> None:
    written = page.write_page(BOARD, tmp_path)
    text = written.read_text()
    assert "3 of its 10 seeds" in text
    assert "Not recorded: random" in text
    for world in ("few", "many"):
        picture = (tmp_path / "images" / f"leaderboard-{world}.svg").read_text()
        assert f"images/leaderboard-{world}.svg" in text
        assert all(name in picture for name in ("linucb", "mine", "cdp"))
    again = [path.read_bytes() for path in page.draw(BOARD, tmp_path / "again")]
    assert again == [path.read_bytes() for path in sorted((tmp_path / "images").iterdir())]


def test_constants_are_those_that_the_rule_found() -> None:
    files = (ROOT / "benchmarks" / f"{name}.toml" for name in ("rivals", "suite"))
    rivals, own = (tomllib.loads(file.read_text())["policies"] for file in files)
    for name, entry in own.items():
        assert suite.POLICIES[name] == entry["constants"]
    assert set(suite.POLICIES) - set(own) - set(rivals) == {
        *("random", "fclub-dc", "fclub-plus", "cdp-fclub-plus")
    }
    assert all(not constants for name, constants in suite.POLICIES.items() if name not in own)


def test_what_is_recorded_is_of_this_suite_and_is_on_its_page() -> None:
    recorded = record.load()
    assert list(recorded.cells) == list(suite.WORLDS)
    assert recorded.seeds == suite.SEEDS[: len(recorded.seeds)]
    assert set(recorded.policies) <= set(suite.POLICIES)
    assert all(
        len(cell.regret) == len(recorded.seeds)
        for cells in recorded.cells.values()
        for cell in cells.values()
    )
    assert (ROOT / "docs" / "leaderboard.md").read_text() == page.markdown(recorded)


def test_what_is_recorded_is_what_is_played() -> None:
    recorded = record.load()
    chosen = {name: suite.settings()[name] for name in ("random", "linucb")}
    played = record.play(chosen, worlds=("few",), seeds=(1,))
    for name in chosen:
        assert played.cells["few"][name].regret[0] == recorded.cells["few"][name].regret[1]


def test_a_record_of_another_suite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(InvalidFile, match="no record"):
        record.load(path)
    path.write_text("{}")
    with pytest.raises(InvalidFile, match="not a record"):
        record.load(path)
    other = board(linucb=[1.0])
    other.digest = "another"
    record.save(other, path)
    with pytest.raises(InvalidFile, match="another"):
        record.load(path)


def test_the_command_prints_ranks() -> None:
    answer = CliRunner().invoke(app, ["--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["digest"] == suite.digest()
    assert [line["place"] for line in found["ranks"]] == list(range(1, len(found["ranks"]) + 1))
    shown = CliRunner().invoke(app, [], env={"COLUMNS": "140"})
    assert "heto-fedbandit" in shown.stdout


@pytest.mark.slow
def test_a_policy_of_ones_own_is_ranked_among_the_recorded(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import fclub\n\n\nclass Mine(fclub.Greedy):\n    pass\n")
    answer = CliRunner().invoke(
        app, ["--policy", f"{mine}:Mine", "--jobs", "1", "--json", "--out", str(tmp_path / "board")]
    )
    assert answer.exit_code == 0, answer.output
    lines = {line["policy"]: line for line in json.loads(answer.stdout)["ranks"]}
    assert lines[f"{mine}:Mine"]["relative"] == lines["greedy"]["relative"]
    assert (tmp_path / "board" / "leaderboard.md").exists()
