"""Environments on arrays of user vectors, and what the published arrays really are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

import fclub
from fclub.environments.data.pipeline import distinct
from fclub.environments.vectors import MovieLens, Published, Yelp, find_array, load_array
from fclub.errors import DataMissing, InvalidFile, InvalidSetting, NotStarted
from fclub.parameters import rows_of

Find = Callable[[str], Path]


def started(name: str, seed: int = 0, **parameters: Any) -> fclub.Environment:
    environment = fclub.make_environment(name, **parameters)
    environment.start(seed)
    return environment


def sizes(environment: fclub.Environment) -> list[int]:
    return sorted(np.bincount(environment.labels).tolist(), reverse=True)


def test_top40_of_movielens_is_not_four_clusters(real_data: Find) -> None:
    environment = started("movielens", variant="top40", path=str(real_data("authors")))
    assert sizes(environment) == [31, 3, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("name", "variant", "most"),
    [
        ("movielens", "clustered", 10),
        ("movielens", "users", 40),
        ("yelp", "clustered", 10),
        ("yelp", "clustered4", 4),
        ("yelp", "top40", 9),
        ("yelp", "users", 40),
    ],
)
def test_variants(name: str, variant: str, most: int, real_data: Find) -> None:
    environment = started(name, variant=variant, path=str(real_data("authors")))
    found = environment.distinct_users  # type: ignore[attr-defined]
    assert found <= most
    assert found == 40 or variant != "users"
    np.testing.assert_array_equal(np.sort(environment.labels), environment.labels)
    np.testing.assert_array_equal(distinct(environment.theta), environment.labels)  # type: ignore[attr-defined]


def test_users_are_drawn_by_the_seed(real_data: Find) -> None:
    path = str(real_data("authors"))
    one, same, other = (started("yelp", s, variant="users", path=path) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.theta, same.theta)  # type: ignore[attr-defined]
    assert not np.array_equal(one.theta, other.theta)  # type: ignore[attr-defined]


@pytest.mark.parametrize("clusters", [4, 10])
def test_yelp_centroids_are_kmeans_of_the_published_users(clusters: int, real_data: Find) -> None:
    users = load_array(real_data("authors/yelp_1000user_d10.npy"))
    centroids = load_array(real_data(f"authors/yelp_1000user_d10_m{clusters}.npy"))
    labels = distinct(centroids)
    assert labels.max() + 1 == clusters
    centres = np.array([centroids[labels == k][0] for k in range(clusters)])
    means = np.array([users[labels == k].mean(axis=0) for k in range(clusters)])
    np.testing.assert_allclose(means, centres, atol=1e-12)
    nearest = ((users[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(nearest, labels)


@pytest.mark.parametrize("name", ["yelp_1000user_d10.npy", "ml_1000user_d10_tmp.npy"])
def test_published_users_have_the_pipelines_form(name: str, real_data: Find) -> None:
    """As far as the vectors alone can show: unit directions beside the constant; a first singular
    vector of one sign, as that of a non-negative matrix has; and there are row lengths that make the
    columns orthonormal."""
    vectors = load_array(real_data(f"authors/{name}"))
    directions = vectors[:, :-1] * np.sqrt(2)
    np.testing.assert_allclose(vectors[:, -1], np.sqrt(0.5))
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0)
    assert len(set(np.sign(directions[:, 0]))) == 1
    rows, columns = np.triu_indices(9)
    _, residual = nnls(
        (directions[:, rows] * directions[:, columns]).T, (rows == columns).astype(float)
    )
    assert residual < 1e-9


def test_any_file(tmp_path: Path) -> None:
    file = tmp_path / "theta.npy"
    rows = np.full((6, 3), 0.25)
    rows[:, -1] = 0.5
    rows[3:, 0] = 0.1
    np.save(file, rows[[0, 3, 1, 4, 2, 5]])
    environment = started("arrays", path=str(file), users=6, servers=2)
    np.testing.assert_array_equal(environment.labels, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(environment.server_of, [0, 0, 0, 1, 1, 1])
    assert environment.get_params()["users"] == 6


def test_labels_are_unknown_before_the_start(tmp_path: Path) -> None:
    np.save(tmp_path / "theta.npy", np.full((6, 3), [0.1, 0.1, 0.5]))
    environment = fclub.make_environment("arrays", path=str(tmp_path / "theta.npy"), users=6)
    with pytest.raises(NotStarted):
        _ = environment.labels


def test_folders_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCLUB_DATA_DIR", str(tmp_path))
    with pytest.raises(DataMissing, match="FCLUB_DATA_DIR"):
        find_array("a.npy")
    (tmp_path / "authors").mkdir()
    np.save(tmp_path / "authors" / "a.npy", np.eye(2))
    assert find_array("a.npy") == tmp_path / "authors" / "a.npy"


@pytest.mark.parametrize(
    "content",
    [
        np.ones(3),
        np.array([[0.5, 0.1]]),
        np.array([[1.0, 1.0]]),
        np.array([[np.nan, 0.0]]),
        np.array([["a"]]),
    ],
)
def test_unfit_arrays(content: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", content)
    with pytest.raises(InvalidFile):
        load_array(tmp_path / "a.npy")


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidFile):
        load_array(tmp_path / "a.npy")


def test_impossible_settings(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((6, 3), [0.1, 0.1, 0.5]))
    path = str(tmp_path / "a.npy")
    with pytest.raises(InvalidSetting, match="at most 6"):
        started("arrays", path=path, users=7)
    with pytest.raises(InvalidSetting, match="variant"):
        fclub.make_environment("movielens", variant="nothing")
    with pytest.raises(InvalidSetting, match="variant"):
        fclub.make_environment("movielens", variant="clustered4")
    with pytest.raises(InvalidSetting, match="dim is 3"):
        fclub.make_environment("movielens", variant="users", path=path)


@pytest.mark.parametrize("kind", [MovieLens, Yelp])
def test_every_variant_is_a_choice_with_a_sentence(kind: type[Published]) -> None:
    row = rows_of(kind)["variant"]
    choices = row.allowed.split(" or ")
    assert {"printed", *kind.files} <= set(choices)
    assert all(f"{choice}: " in row.meaning for choice in choices)
