"""`fclub data` parses, calls, prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Command

LINES = [f"{user},{item},{1 + (user + item) % 5}" for user in range(8) for item in range(6)]


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    path = tmp_path / "ratings.csv"
    path.write_text("userId,movieId,rating\n" + "\n".join(LINES) + "\n")
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data go into a cache of their own, and there is no network."""
    monkeypatch.setenv("FCLUB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")


def fclub(*words: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which finds what another one has left."""
    command = [sys.executable, "-m", "fclub", "data", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_take_check_and_find_again(ratings: Path) -> None:
    taken = fclub("movielens-latest-small", "--from", ratings, "--json")
    assert taken.returncode == 0, taken.stderr
    first = json.loads(taken.stdout)
    assert (first["ratings"], first["users"], first["items"]) == (48, 8, 6)
    assert "GroupLens" in first["licence"]
    again = json.loads(fclub("movielens-latest-small", "--check", "--json").stdout)
    assert again.pop("matrix")
    assert again == first
    listing = json.loads(fclub("--json").stdout)
    assert [name for name, entry in listing.items() if entry["installed"]] == [first["name"]]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("movielens-1m",), 1, "https://files.grouplens.org/datasets/movielens/ml-1m.zip"),
        (("movielens-1m",), 1, "--from FILE"),
        (("movielens-1m", "--from", "nowhere"), 1, "there is no file"),
        (("movielens-2m",), 2, "did you mean"),
    ],
)
def test_errors_are_one_line(words: tuple[str, ...], code: int, text: str, command: Command) -> None:
    answer = command("data", *words)
    assert answer.returncode == code
    assert text in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert answer.stdout == ""


def test_faulty_file_names_the_line(ratings: Path, tmp_path: Path, command: Command) -> None:
    ratings.write_text("\n".join(["userId,movieId,rating", *LINES, LINES[0]]))
    answer = command("data", "movielens-latest-small", "--from", ratings)
    assert answer.returncode == 1
    assert "line 50" in answer.stderr
    assert not list((tmp_path / "cache").rglob("*.npz"))


def test_another_file_of_the_same_format_is_refused(
    ratings: Path, tmp_path: Path, command: Command
) -> None:
    for name, said in (
        ("lastfm", "lastfm has 92,834 ratings, this file 48"),
        ("yelp", "yelp is in yelp_academic_dataset_review.json or review.json, not in a file as rat"),
    ):
        answer = command("data", name, "--from", ratings)
        assert answer.returncode == 1
        assert said in answer.stderr
    assert not list((tmp_path / "cache").rglob("*.npz"))


def test_plain_text(ratings: Path, command: Command) -> None:
    taken = command("data", "movielens-latest-small", "--from", ratings)
    assert "verified: structure only: no checksum or size is known" in taken.stdout
    (kept,) = ratings.parent.rglob("*.npz")
    cure = f"nothing says that this is movielens-latest-small; to undo, rm {kept}"
    assert cure in taken.stderr
    assert "licence: " in taken.stdout
    assert "movielens-25m" in command("data").stdout
    assert "Example" in command("data", "--help").stdout
