"""Any layout gives the same ratings; any fault is named with its line."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.environments.data.ratings_file import Ratings, ratings_of, read_ratings
from fclub.errors import InvalidFile, InvalidInput, InvalidRatings

Triples = dict[tuple[int, int], float]

triples = st.dictionaries(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    st.integers(1, 10).map(lambda stars: stars / 2),
    min_size=2,
    max_size=30,
).filter(lambda rated: len({user for user, _ in rated}) > 1)


def as_text(rated: Triples, layout: str) -> str:
    if layout == "json":
        return "\n".join(
            f'{{"review_id": "r", "user_id": "{u}", "business_id": "{i}", "stars": {r}}}'
            for (u, i), r in rated.items()
        )
    header, separator = {
        "csv": ("userId,movieId,rating\n", ","),
        "quoted": ('"score","item","user"\n', ","),
        "dat": ("", "::"),
        "tsv": ("userID\tartistID\tweight\n", "\t"),
    }[layout]
    if layout == "quoted":
        return header + "\n".join(f'"{r}","{i}","{u}"' for (u, i), r in rated.items()) + "\n"
    return header + "\n".join(separator.join(map(str, (u, i, r))) for (u, i), r in rated.items())


def back(ratings: Ratings) -> Triples:
    users, items = ratings.user_ids[ratings.users], ratings.item_ids[ratings.items]
    return {(int(u), int(i)): r for u, i, r in zip(users, items, ratings.values, strict=True)}


@pytest.mark.parametrize("layout", ["csv", "quoted", "dat", "tsv", "json"])
@given(rated=triples)
def test_reads_what_was_written(
    rated: Triples, layout: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("layout") / f"ratings.{layout}"
    path.write_text(as_text(rated, layout))
    ratings = read_ratings(path)
    assert back(ratings) == rated
    assert list(ratings.user_ids) == sorted({u for u, _ in rated})
    assert list(ratings.item_ids) == sorted({i for _, i in rated})
    assert ratings.matrix().sum() == len(rated)
    assert ratings.matrix(binary=False).sum() == pytest.approx(sum(rated.values()))


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"userId,movieId,rating\n1,2,3\n2,2\n", 3, "fields"),
        (b"userId,movieId,rating\n1,2,three\n2,2,1\n", 2, "three"),
        (b"userId,movieId,rating\n1,2,nan\n2,2,1\n", 2, "finite"),
        (b"userId,movieId,rating\n1,,1\n2,2,1\n", 2, "named"),
        (b"userId,rating,timestamp\n1,3,0\n", 1, "no item column"),
        (b"1::2::3::0\n2::2::3::0\n1::2::4::9\n", 3, "already in line 1"),
        (b"1::2::3\n1::3::3\n", 2, "one user"),
        (b"1::2::3\n2::\xff::3\n", 2, "UTF-8"),
        (b"1::2::3\n\n2::2::3\n", 2, "empty"),
        (b"", 1, "empty"),
        (b"userId,movieId,rating\n", 2, "no rating"),
        (b"just some words\n", 1, "separator"),
    ],
)
def test_fault_has_its_line(content: bytes, line: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidRatings, match=reason) as caught:
        read_ratings(path)
    assert caught.value.line == line
    assert f"line {line}" in str(caught.value)


def test_fault_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "review.json"
    path.write_text('{"user_id": "a", "business_id": "x", "stars": 4}\n{"user_id": "b"}\n')
    with pytest.raises(InvalidRatings, match="line 2"):
        read_ratings(path)


def test_last_of_repeated_ratings_can_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text("1::7::1\n2::7::3\n1::7::5\n")
    assert back(read_ratings(path, duplicates="last")) == {(1, 7): 5.0, (2, 7): 3.0}


def test_ids_may_be_words(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("user,item,rating\nzoe,b,1\nadam,a,2\n")
    ratings = read_ratings(path)
    assert list(ratings.user_ids) == ["adam", "zoe"]
    np.testing.assert_array_equal(ratings.users, [1, 0])


def test_missing_file() -> None:
    with pytest.raises(InvalidFile, match="there is no file"):
        read_ratings("nowhere.csv")


def test_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "ratings.parquet"
    table = pandas.DataFrame({"userId": [1, 2], "movieId": [5, 5], "rating": [3.0, 4.0]})
    table.to_parquet(path)
    assert back(read_ratings(path)) == {(1, 5): 3.0, (2, 5): 4.0}


def test_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"item": [7, 8], "rating": [1.0, 2.0], "user": [2, 1]})
    assert back(ratings_of(frame)) == {(2, 7): 1.0, (1, 8): 2.0}
    assert ratings_of(frame).digest == ratings_of(frame.copy()).digest
    assert ratings_of(frame).digest != ratings_of(frame.assign(rating=3.0)).digest


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rating": [1.0, None]}, "line 2: rating nan is not a finite number"),
        ({"user": ["zoe", None]}, "line 2: user and item must be named"),
        ({"item": ["", "a"]}, "line 1: user and item must be named"),
        ({"user": ["zoe", "zoe"]}, "line 2: all ratings are of one user"),
    ],
)
def test_faults_of_a_data_frame_are_named(change: dict[str, list[object]], reason: str) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"user": ["zoe", "adam"], "item": ["b", "a"], "rating": [1.0, 2.0]}
    with pytest.raises(InvalidRatings, match=reason):
        ratings_of(pandas.DataFrame(columns | change))


def test_ratings_come_from_files_and_frames_only() -> None:
    with pytest.raises(InvalidInput, match="data frame"):
        ratings_of([("zoe", "b", 1.0)])


UNUSUAL = {
    "without a last end of line": b"user,item,rating\nzoe,a,1\nadam,b,2",
    "spaces around ids": b"user,item,rating\n zoe,a ,1\nzoe,b,2\nadam,a,3\n",
    "ends of lines as on Windows": b"user\titem\trating\r\n1\t2\t3\r\n2\t2\t3\r\n",
    "a header in quotes": b'"user","item","rating"\n1,2,3\n2,2,3\n',
    "a mark at the start": b"\xef\xbb\xbfuser;item;rating\n1;2;3\n2;2;3\n",
    "letters of the world": "user,item,rating\nżółw,Ω,1\n猫,Ω,2\n".encode(),
    "quotes": b'user,item,rating\n1,"a,b",3\n2,c,3\n',
    "an empty line at the end": b"1::2::3\n2::2::3\n\n",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_files_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_bytes(UNUSUAL[name])
    found = read_ratings(path)
    assert len(found.user_ids) == 2
    assert all(str(key) == str(key).strip() for key in (*found.user_ids, *found.item_ids))


def test_whole_numbers_of_a_data_frame_are_read_as_one_by_one() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": [30, 4, 4], "item": [7, 8, 7], "rating": [1, 2, 3]})
    words = frame.astype({"user": str, "item": str})
    assert ratings_of(frame).digest == ratings_of(words).digest
