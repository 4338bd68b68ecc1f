"""Features of items from ratings, and the catalogue that a server reads them from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fclub.cli.features import app
from fclub.environments.data.features import item_features, read_titles
from fclub.environments.data.pipeline import item_quality
from fclub.environments.data.ratings_file import read_ratings
from fclub.errors import InvalidFile, InvalidInput
from fclub.service.nodes.importing import read_past
from fclub.service.store.items_file import read_items

HALF = float(np.sqrt(0.5))


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """Even users rate and like even items, odd users odd ones, with some exceptions."""
    rng, path = np.random.default_rng(0), tmp_path / "ratings.csv"
    lines = ["user,item,rating"]
    for user in range(60):
        for item in range(40):
            alike = (user - item) % 2 == 0
            if rng.random() < (0.7 if alike else 0.25):
                lines.append(f"{user},{item},{5 if rng.random() < (0.9 if alike else 0.1) else 1}")
    path.write_text("\n".join(lines))
    return path


def test_vectors_are_what_a_server_takes(ratings: Path, tmp_path: Path) -> None:
    made = item_features(str(ratings), 4)
    assert sorted(made.ids, key=int) == [str(k) for k in range(40)]
    assert made.constant == HALF
    file = tmp_path / "items.csv"
    made.write(file)
    ((ids, rows),) = read_items(file, 4)
    assert ids == made.ids
    np.testing.assert_array_equal(rows, made.rows)


def test_the_check_tells_taste_from_popularity(ratings: Path) -> None:
    check = item_features(str(ratings), 4).check
    assert check.users > 40
    assert check.features > 0.8
    assert 0.3 < check.popularity < 0.7


def test_the_most_rated_items_and_a_data_frame(ratings: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(ratings)
    made, few = item_features(frame, 4), item_features(frame, 4, size=10)
    np.testing.assert_array_equal(made.rows, item_features(str(ratings), 4).rows)
    assert few.ids == made.ids[:10]


def test_quality_is_the_last_but_one_feature_and_can_be_left_out(ratings: Path, tmp_path: Path) -> None:
    with_it, without = item_features(str(ratings), 4), item_features(str(ratings), 3, quality=False)
    np.testing.assert_allclose(with_it.rows[:, :2], HALF * without.rows[:, :2])
    rated, liked = np.zeros(40), np.zeros(40)
    for _, item, likes in with_it.opinions:
        rated[item] += 1
        liked[item] += likes
    np.testing.assert_allclose(with_it.rows[:, 2], 0.5 * item_quality(liked, rated), atol=1e-12)
    words = f"{ratings} --dim 3 --out {tmp_path / 'items.csv'} --no-quality"
    assert CliRunner().invoke(app, words.split()).exit_code == 0
    ((_, rows),) = read_items(tmp_path / "items.csv", 3)
    np.testing.assert_array_equal(rows, without.rows)


def test_titles_take_the_place_of_ids(ratings: Path, tmp_path: Path) -> None:
    titles = tmp_path / "titles.csv"
    titles.write_text('item,title\n0,"Alien, The"\n1,Brazil\n2,Brazil\n')
    named = tmp_path / "items.csv"
    done = CliRunner().invoke(
        app, [str(ratings), "--dim", "4", "--out", str(named), "--titles", str(titles)]
    )
    assert "40 items with 4 features, the last of them 0.7071067811865476" in done.output
    ((ids, _),) = read_items(named, 4)
    assert {"Alien, The", "Brazil [1]", "Brazil [2]", "3"} <= set(ids)


def test_the_log_says_who_liked_what(ratings: Path, tmp_path: Path) -> None:
    titles, log, out = (tmp_path / name for name in ("titles.csv", "log.csv", "items.csv"))
    titles.write_text('item,title\n0,"Alien, The"\n')
    words = f"{ratings} --dim 4 --out {out} --titles {titles} --log {log} --threshold 4"
    assert CliRunner().invoke(app, words.split()).exit_code == 0
    known = read_ratings(ratings)
    told = {(one.user, one.item): one.reward for one in read_past(log)}
    assert len(told) == len(known)
    for user, item, value in zip(known.users, known.items, known.values, strict=True):
        name = "Alien, The" if known.item_ids[item] == 0 else str(known.item_ids[item])
        assert told[str(known.user_ids[user]), name] == float(value >= 4)


def test_it_answers_in_json(ratings: Path, tmp_path: Path) -> None:
    out = tmp_path / "items.csv"
    done = CliRunner().invoke(app, [str(ratings), "--dim", "4", "--out", str(out), "--json"])
    told = json.loads(done.output)
    assert (told["items"], told["constant"]) == (40, HALF)
    assert told["check"]["features"] > 0.8


def test_what_cannot_be_done_is_named(ratings: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holdout"):
        item_features(str(ratings), 4, holdout=1.0)
    with pytest.raises(InvalidInput, match="no user has both"):
        item_features(str(ratings), 4, threshold=9.0)
    with pytest.raises(InvalidFile, match="No such file"):
        read_titles(tmp_path / "missing.csv")
    with pytest.raises(InvalidFile, match="No such file"):
        item_features(str(ratings), 4).write(tmp_path / "missing" / "items.csv")
