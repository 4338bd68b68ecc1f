"""Real rewards: what is offered was held out, and what is liked was liked."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fclub
from fclub.core.inputs import NORM_TOLERANCE
from fclub.environments.data.pipeline import item_quality
from fclub.environments.data.ratings_file import read_ratings
from fclub.environments.liked import Liked
from fclub.environments.world import HALF
from fclub.errors import InvalidSetting
from fclub.experiments.report.measured import summarise
from fclub.experiments.report.pages import build_report
from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run

Write = Callable[..., Path]


def make(path: Path, **parameters: Any) -> Liked:
    settings = {"users": 12, "servers": 3, "dim": 4, "items": 5, "size": 40} | parameters
    return Liked(path=str(path), **settings)


def test_the_held_out_share_of_every_user_is_exact(write_ratings: Write) -> None:
    environment = make(write_ratings(), holdout=0.4, enough=21)
    held_out = environment.hold_out(np.random.default_rng(0))
    row = np.repeat(np.arange(60), environment.counts)
    kept = np.bincount(row[held_out], minlength=60)
    eligible = environment.counts >= 21
    assert 10 < eligible.sum() < 60
    np.testing.assert_array_equal(environment.eligible, np.flatnonzero(eligible))
    np.testing.assert_array_equal(kept[eligible], np.round(0.4 * environment.counts[eligible]))
    assert not kept[~eligible].any()
    assert not np.array_equal(held_out, environment.hold_out(np.random.default_rng(1)))


def test_likes_are_the_files(write_ratings: Write) -> None:
    path = write_ratings()
    environment = make(path, threshold=4.0)
    environment.start(0)
    ratings = read_ratings(path)
    stars = ratings.matrix(binary=False).toarray()
    popular = np.argsort(-(stars > 0).sum(axis=0), kind="stable")[:40]
    np.testing.assert_array_equal(environment.rated.toarray(), stars[:, popular])
    np.testing.assert_array_equal(environment.likes, environment.rated.data >= 4.0)
    shelf = environment.world.catalogue
    shown = {
        (tuple(sorted(shelf.candidates[a:b].tolist())), float(shelf.liked[a:b].sum()))
        for a, b in pairwise(shelf.starts.tolist())
    }
    assert len(shown) == 12
    for candidates, likes in shown:
        of_somebody = (stars[:, popular][:, list(candidates)] > 0).all(axis=1)
        counts = (stars[:, popular][:, list(candidates)] >= 4.0).sum(axis=1)
        assert likes in counts[of_somebody]


def test_offers_are_different_held_out_items(write_ratings: Write) -> None:
    environment = make(write_ratings())
    environment.start(3)
    shelf = environment.world.catalogue
    allowed = [set(shelf.candidates[shelf.starts[u] : shelf.starts[u + 1]].tolist()) for u in range(12)]
    truth = {
        (u, int(shelf.candidates[p])): shelf.liked[p]
        for u in range(12)
        for p in range(shelf.starts[u], shelf.starts[u + 1])
    }
    for _ in range(300):
        user, items = environment.visit()
        first = shelf.starts[user]
        offered = shelf.candidates[first : first + 5].tolist()
        assert len(set(offered)) == 5
        assert set(offered) <= allowed[user]
        np.testing.assert_array_equal(items, shelf.features[offered])
        rewards = [truth[user, item] for item in offered]
        outcome = environment.feedback(2)
        assert outcome.reward == rewards[2]
        assert outcome.regret == max(rewards) - rewards[2]


def test_every_candidate_is_offered_equally_often(write_ratings: Write) -> None:
    environment = make(write_ratings(), users=1, servers=1)
    environment.start(0)
    shelf = environment.world.catalogue
    size = int(shelf.starts[1])
    seen: dict[int, int] = dict.fromkeys(shelf.candidates[:size].tolist(), 0)
    visits = 1500
    for _ in range(visits):
        environment.visit()
        for item in shelf.candidates[:5].tolist():
            seen[item] += 1
    expected = visits * 5 / size
    deviation = sum((count - expected) ** 2 / expected for count in seen.values())
    assert deviation < size + 5 * np.sqrt(2 * size)


def test_features_come_from_training_only(write_ratings: Write) -> None:
    environment = make(write_ratings())
    environment.start(0)
    features = environment.world.catalogue.features
    assert features.shape == (40, 4)
    assert (features[:, -1] == HALF).all()
    environment.start(1)
    assert not np.array_equal(environment.world.catalogue.features, features)


def test_quality_is_the_like_rate_in_training_beside_the_other_features(write_ratings: Write) -> None:
    environment, plain = make(write_ratings(), dim=5), make(write_ratings(), dim=4, quality=False)
    for one in (environment, plain):
        one.start(0)
    rows, others = environment.world.catalogue.features, plain.world.catalogue.features
    np.testing.assert_allclose(rows[:, :3], np.sqrt(0.5) * others[:, :3])
    np.testing.assert_array_equal(rows[:, 4], others[:, 3])
    assert np.linalg.norm(rows, axis=1).max() <= 1.0 + NORM_TOLERANCE
    held_out = environment.hold_out(np.random.default_rng(np.random.SeedSequence(0).spawn(6)[0]))
    train = environment.rated.copy()
    train.data = np.where(held_out, 0.0, 1.0 + environment.likes)
    table = train.toarray()
    likes, rated = (table == 2.0).sum(axis=0), (table > 0.0).sum(axis=0)
    np.testing.assert_allclose(rows[:, 3], 0.5 * item_quality(likes, rated), atol=1e-12)


def test_impossible_settings(write_ratings: Write) -> None:
    path = write_ratings()
    with pytest.raises(InvalidSetting, match="holdout"):
        make(path, holdout=1.0)
    with pytest.raises(InvalidSetting, match="features"):
        make(path, features="guessed")
    with pytest.raises(InvalidSetting, match="too few"):
        make(path, items=15, users=50)
    with pytest.raises(InvalidSetting, match="enough"):
        make(path, enough=4)
    with pytest.raises(InvalidSetting, match="dim must be between 2 and 40"):
        make(path, dim=42).start(0)
    with pytest.raises(InvalidSetting, match="dim must be between 2 and 40"):
        make(path, dim=41, quality=False).start(0)
    with pytest.raises(InvalidSetting, match="dim must be at least 3"):
        make(path, dim=2).start(0)


@pytest.mark.parametrize("name", ["ratings", "liked"])
def test_a_data_frame_gives_the_world_of_its_file(write_ratings: Write, name: str) -> None:
    pandas = pytest.importorskip("pandas")
    path = write_ratings()
    frame = pandas.read_csv(path)
    options = {"users": 20, "size": 40, "items": 5, "dim": 4}
    traces = [
        fclub.simulate("linucb", fclub.make_environment(name, path=source, **options), 50)
        for source in (path, frame)
    ]
    assert traces[0].regret.tolist() == traces[1].regret.tolist()
    assert traces[0].settings["environment"]["path"] == str(path)
    assert traces[1].settings["environment"]["path"].startswith(f"data frame of {len(frame):,} ratings")


@pytest.mark.parametrize(
    ("name", "clusters", "known"), [("liked", 3, 1), ("ratings", 0, 1), ("ratings", 3, 3)]
)
def test_nobody_claims_clusters_that_nobody_knows(
    name: str, clusters: int, known: int, write_ratings: Write, tmp_path: Path
) -> None:
    sizes = {"users": 12, "servers": 3, "dim": 4, "items": 5, "size": 40}
    setting = Setting(name, {"path": str(write_ratings()), "clusters": clusters, **sizes})
    experiment = Experiment({"linucb": Setting("linucb")}, setting, 20, (0, 1))
    traces = run(experiment, results=Results.create(tmp_path / "run", experiment))
    assert list(traces["linucb"][0].clusters) == ["found", "true", "ari"][:known]
    told = summarise(experiment, traces)["policies"]["linucb"]["clusters"]
    assert [kind for kind, value in told.items() if value is not None] == ["found", "true", "ari"][
        :known
    ]
    (table,) = build_report(tmp_path / "run").sections[0].drawn.tables
    assert ("ARI" in table.columns) == ("true clusters" in table.title) == (known == 3)


def test_everybody_who_rated_enough_may_come(write_ratings: Write) -> None:
    path = write_ratings()
    everybody = make(path, users=None, enough=5)
    assert everybody.problem.users == 60
    some = make(path, users=None, enough=21)
    assert some.problem.users == (some.counts >= 21).sum() < 60
    again: Any = everybody.get_params()
    assert Liked(**again).problem.users == 60
    everybody.start(0)
    assert (np.diff(everybody.world.catalogue.starts) >= 5).all()


@pytest.mark.parametrize(
    ("name", "users"),
    [("ml-latest-small/ratings.csv", 547), ("movietweetings/100K/ratings.dat", 763)],
)
def test_as_many_users_as_a_real_file_has(
    name: str, users: int, real_data: Callable[[str], Path]
) -> None:
    environment = Liked(path=str(real_data(name)), users=None, servers=10, placement="spread")
    assert environment.problem.users == users
    trace = fclub.simulate("linucb", environment, 10 * users, seed=1)
    assert 0.0 < trace.regret[-1] < 5 * users


def test_nobody_has_rated_fresh_items(write_ratings: Write) -> None:
    environment, known = make(write_ratings(), fresh=0.5), make(write_ratings())
    for one in (environment, known):
        one.start(1)
    rows = environment.world.catalogue.features
    fresh = np.linalg.norm(rows[:, :-1], axis=1) < 1e-4
    assert fresh.sum() == environment.problem.items / 2 == 20
    assert len(np.unique(rows, axis=0)) == 40
    assert (np.linalg.norm(rows, axis=1) <= 1.0 + 1e-12).all()
    assert (np.linalg.norm(known.world.catalogue.features[:, :-1], axis=1) > 1e-4).all()
    with pytest.raises(InvalidSetting, match="fresh"):
        make(write_ratings(), fresh=1.0)
