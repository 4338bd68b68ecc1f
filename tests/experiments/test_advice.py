"""Would federating pay? Gains are paired by seed, put in words, and drawn over visits per user."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fclub.cli.advise import app
from fclub.errors import InvalidInput
from fclub.experiments.report.measured import over_seeds, relative
from fclub.experiments.study.advice import ALONE, advice_figure, gains


def rows(*values: float) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return [np.array([0.0, value, 2 * value]) for value in values]


def test_a_ratio_is_taken_seed_by_seed_and_starts_where_there_is_regret() -> None:
    t = np.array([1, 2, 3])
    ratio = relative(over_seeds(t, rows(1.0, 3.0)), over_seeds(t, rows(2.0, 4.0)))
    assert ratio.t.tolist() == [2, 3]
    assert ratio.mean == pytest.approx([0.625, 0.625])
    assert ratio.last == pytest.approx([0.5, 0.75])


def test_gains_say_how_sure_they_are() -> None:
    alone = np.array([100.0, 200.0, 150.0])
    regret = {
        ALONE: alone,
        "better": 0.8 * alone + np.array([1.0, -1.0, 0.0]),
        "same": 1.004 * alone,
        "unclear": alone * np.array([0.5, 1.4, 1.4]),
    }
    better, same, unclear = gains(regret)
    assert better.ratio == pytest.approx(0.8, abs=0.01)
    assert better.sentence().startswith("better: 20 % less regret than staying alone (ratio 0.80")
    assert "sure" not in better.sentence()
    assert same.sentence().startswith("same: no gain and no loss")
    assert "10 % more" in unclear.sentence()
    assert "more seeds are needed" in unclear.sentence()
    (once,) = gains({ALONE: alone[:1], "better": alone[:1] / 2})
    assert once.half is None
    assert "more seeds are needed" in once.sentence()


def test_settings_are_checked() -> None:
    for visits, seeds in ((0, 1), (1, 0)):
        with pytest.raises(InvalidInput, match="at least 1"):
            advice_figure("nowhere.csv", 2, visits, seeds, {})


def test_a_file_is_played_and_the_answer_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["userId,movieId,rating"]
    for user in range(24):
        liked = rng.permutation(60)[:40]
        lines += [f"{user},{item},{4 + (item + user) % 2}" for item in liked]
    path = tmp_path / "ratings.csv"
    path.write_text("\n".join(lines))
    words = [str(path), "--servers", "2", "--visits", "3", "--seeds", "2", "--jobs", "1"]
    folder = ["--out", str(tmp_path / "out")]
    told = CliRunner().invoke(app, [*words, *folder])
    assert told.exit_code == 0, told.output
    assert "24 users on 2 servers, 3 visits each, 2 seeds." in told.stdout
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "figures" / "advice-gain.png").exists()
    again = CliRunner().invoke(app, [*words, *folder, "--json"])
    answer = json.loads(again.stdout[again.stdout.index("{") :])
    assert [gain["policy"] for gain in answer["gains"]][:2] == ["together", "together, private"]
