"""The fast reader gives what the careful one gives, or gives up."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fclub.environments.data import plain_text, ratings_file
from fclub.environments.data.ratings_file import Ratings, read_ratings
from fclub.errors import InvalidRatings

pytest.importorskip("pyarrow")

PLAIN = {
    "csv": b"userId,movieId,rating,timestamp\n1,10,4.5,7\n2,10,3,8\n2,7,0.5,9\n",
    "without a last end of line": b"user,item,rating\nzoe,a,1\nadam,b,2",
    "spaces around ids": b"user,item,rating\n zoe,a ,1\nzoe,b,2\nadam,a,3\n",
    "ends of lines as on Windows": b"user\titem\trating\r\n1\t2\t3\r\n2\t2\t3\r\n",
    "a header in quotes": b'"user","item","rating"\n1,2,3\n2,2,3\n',
    "no header": b"1::10::5::978\n2::10::4::979\n",
    "a mark at the start": b"\xef\xbb\xbfuser;item;rating\n1;2;3\n2;2;3\n",
    "letters of the world": "user,item,rating\nżółw,Ω,1\n猫,Ω,2\n".encode(),
}
NOT_PLAIN = {
    "quotes": b'user,item,rating\n1,"a,b",3\n2,c,3\n',
    "an empty line at the end": b"1::2::3\n2::2::3\n\n",
    "a number as Python writes it": b"user,item,rating\n1,2,1_0\n2,2,3\n",
}
FAULTY = {
    "too few fields": b"user,item,rating\n1,2,3\n2,2\n",
    "no number": b"user,item,rating\n1,2,3\n2,2,three\n",
    "not finite": b"user,item,rating\n1,2,3\n2,2,nan\n",
    "an empty rating": b"user,item,rating\n1,2,3\n2,2,\n",
    "an empty id": b"user,item,rating\n1,2,3\n, ,3\n",
    "not UTF-8, in a column of no use": b"user,item,rating,title\n1,2,3,\xff\n2,2,3,b\n",
    "a lone carriage return": b"user,item,rating\n1,2,3\r2,2,3\n3,2,3\n",
    "an empty line": b"user,item,rating\n1,2,3\n\n2,2,3\n",
    "one colon where there should be two": b"1::2::3\n2:x2::3\n",
    "twice the same": b"user,item,rating\n1,2,3\n2,2,3\n1,2,4\n",
}
LINES = [
    "user,item,rating", "1,2,3", "2,2,3", "2,3,4.5", "1::2::3", "2::2::3", "2:2:3", " 1,2 ,3", "",
    '"1",2,3', "1,2", "x,y,1e3", "x,y,inf", "x,y, 2", "x,,1", "\r", "ü,2,3",
]  # fmt: skip


def read(path: Path, fast: bool, monkeypatch: pytest.MonkeyPatch) -> Ratings | str:
    monkeypatch.setattr(ratings_file, "LARGE", 0 if fast else 1 << 60)
    try:
        return read_ratings(path, duplicates="refuse")
    except InvalidRatings as error:
        return str(error)


def assert_same(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        fast, careful = read(path, True, patch), read(path, False, patch)
    if isinstance(fast, str) or isinstance(careful, str):
        assert fast == careful
        return
    assert fast.digest == careful.digest
    np.testing.assert_array_equal(fast.user_ids, careful.user_ids)
    np.testing.assert_array_equal(fast.item_ids, careful.item_ids)


@pytest.mark.parametrize("name", [*PLAIN, *NOT_PLAIN, *FAULTY])
def test_both_readers_agree(name: str, tmp_path: Path) -> None:
    assert_same(tmp_path / "ratings.csv", (PLAIN | NOT_PLAIN | FAULTY)[name])


@pytest.mark.parametrize("name", [*PLAIN, *NOT_PLAIN])
def test_plain_files_are_read_without_a_loop(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ratings.csv"
    path.write_bytes((PLAIN | NOT_PLAIN)[name])
    slow: list[object] = []
    careful = ratings_file._read_lines

    def watched(*given: Any) -> Any:
        slow.append(given)
        return careful(*given)

    monkeypatch.setattr(ratings_file, "_read_lines", watched)
    assert isinstance(read(path, True, monkeypatch), Ratings)
    assert bool(slow) == (name in NOT_PLAIN)


def test_blocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids, letters and ends of lines that lie in two blocks."""
    rng = np.random.default_rng(1)
    rows = {(int(u), int(i)) for u, i in rng.integers(0, 60, (500, 2))}
    text = "user,item,rating\r\n" + "".join(f"{u},ü{i},{u % 5}\r\n" for u, i in rows)
    monkeypatch.setattr(plain_text, "BLOCK", 64)
    path = tmp_path / "ratings.csv"
    assert_same(path, text.encode())
    assert plain_text.read_plain(path, plain_text.Layout(",", 1, 3, (0, 1, 2))) is not None


@given(
    lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=5), end=st.sampled_from(["\n", "\r\n"])
)
@example(lines=["1,2,3", "2,3,4.5"], end="\n")
def test_both_readers_agree_on_anything(
    lines: list[str], end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "ratings.csv"
    assert_same(path, end.join(lines).encode())


def test_whole_numbers_of_a_data_frame_are_read_as_one_by_one() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": [30, 4, 4], "item": [7, 8, 7], "rating": [1, 2, 3]})
    words = frame.astype({"user": str, "item": str})
    assert ratings_file.ratings_of(frame).digest == ratings_file.ratings_of(words).digest
