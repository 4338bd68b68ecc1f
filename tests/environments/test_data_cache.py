"""Data sets come from a file, a folder, an archive or the network; a failure leaves nothing behind."""

import dataclasses
import hashlib
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import fclub
from fclub.environments.data import cache
from fclub.environments.data.cache import DATASETS, check, install, installed, load_ratings
from fclub.environments.data.ratings_file import read_ratings
from fclub.errors import DataMissing, InvalidFile, InvalidRatings, UnknownName
from fclub.paths import cache_root

Write = Callable[..., Path]
NAME = "movielens-latest-small"


def cached_files() -> list[str]:
    folder = cache_root() / "data"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Tests stay silent."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a real web server on this machine that offers the test's folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def move_to(monkeypatch: pytest.MonkeyPatch, url: str, md5: str | None = None) -> None:
    moved = dataclasses.replace(DATASETS[NAME], url=url, md5=md5)
    monkeypatch.setitem(DATASETS, NAME, moved)


def zipped(file: Path) -> Path:
    path = file.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, "ml-latest-small/ratings.csv")
        archive.writestr("ml-latest-small/tags.csv", "x")
    return path


def tarred(file: Path) -> Path:
    path = file.with_suffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(file, "deep/down/ratings.csv")
    return path


@pytest.mark.parametrize("pack", [lambda file: file, lambda file: file.parent, zipped, tarred])
def test_from_what_one_has(pack: Callable[[Path], Path], write_ratings: Write) -> None:
    file = write_ratings()
    manifest = install(NAME, pack(file))
    truth = read_ratings(file)
    assert installed(NAME) == manifest
    assert (manifest.ratings, manifest.users) == (len(truth), len(truth.user_ids))
    loaded = load_ratings(NAME)
    for field, array in vars(truth).items():
        np.testing.assert_array_equal(getattr(loaded, field), array)
    assert cached_files() == [f"{NAME}.npz"]


def test_download(write_ratings: Write, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(write_ratings())
    md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    move_to(monkeypatch, f"{served}/{archive.name}", md5)
    manifest = install(NAME)
    assert manifest.verified == "checksum"
    assert manifest.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert cached_files() == [f"{NAME}.npz"]


def test_wrong_checksum(write_ratings: Write, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(write_ratings())
    move_to(monkeypatch, f"{served}/{archive.name}", "0" * 32)
    with pytest.raises(DataMissing, match="checksum is wrong"):
        install(NAME)
    assert cached_files() == []


def test_not_found_on_the_server(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    move_to(monkeypatch, f"{served}/nothing.zip")
    with pytest.raises(DataMissing, match=f"{served}/nothing.zip .*--from FILE"):
        install(NAME)
    assert cached_files() == []


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    move_to(monkeypatch, "http://127.0.0.1:9/ml.zip")
    with pytest.raises(DataMissing, match=r"http://127\.0\.0\.1:9/ml\.zip.*--from FILE") as caught:
        install(NAME)
    assert "\n" not in str(caught.value)
    assert cached_files() == []


def test_faulty_file_keeps_the_old_copy(write_ratings: Write, tmp_path: Path) -> None:
    before = install(NAME, write_ratings())
    bad = tmp_path / "bad.csv"
    bad.write_text("userId,movieId,rating\n1,2,3\n2,x\n")
    with pytest.raises(InvalidRatings, match="line 3"):
        install(NAME, bad)
    assert installed(NAME) == before
    assert cached_files() == [f"{NAME}.npz"]


@pytest.mark.parametrize("pack", [lambda file: file, zipped])
def test_fault_is_reported_under_the_callers_name(pack: Callable[[Path], Path], tmp_path: Path) -> None:
    bad = tmp_path / "ratings.csv"
    bad.write_text("userId,movieId,rating\n1,2,3\n2,x\n")
    given = pack(bad)
    for take in (lambda: install(NAME, given), lambda: load_ratings(str(given))):
        with pytest.raises(InvalidRatings, match=f"^{given}, line 3: "):
            take()


def test_by_hand() -> None:
    with pytest.raises(DataMissing, match=r"www\.yelp\.com.*--from FILE"):
        install("yelp")


def test_yelp_reviews(tmp_path: Path) -> None:
    file = tmp_path / "yelp_academic_dataset_review.json"
    file.write_text(
        "".join(
            f'{{"user_id": "{user}", "business_id": "b", "stars": {stars}, "text": "x"}}\n'
            for user, stars in (("u", 5.0), ("v", 2.0), ("u", 3.0))
        )
    )
    assert install("yelp", tmp_path).ratings == 2


def of_any_size(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A short file may stand for the data set."""
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], ratings=None, users=None))


def test_movielens_100k_has_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_any_size(monkeypatch, "movielens-100k")
    (tmp_path / "u.data").write_text("196\t242\t3\t881250949\n186\t302\t4\t891717742\n")
    assert install("movielens-100k", tmp_path).ratings == 2
    assert load_ratings("movielens-100k").values.tolist() == [3.0, 4.0]


def test_delicious_counts_a_bookmark_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_any_size(monkeypatch, "delicious")
    head = "userID\tbookmarkID\ttagID\tday\tmonth\tyear\thour\tminute\tsecond\n"
    lines = [(8, 1, 1), (8, 1, 2), (8, 7, 1), (9, 7, 6)]
    rest = "\t8\t11\t2010\t23\t29\t22\n"
    text = head + "".join("\t".join(map(str, line)) + rest for line in lines)
    (tmp_path / "user_taggedbookmarks.dat").write_text(text)
    manifest = install("delicious", tmp_path)
    assert (manifest.ratings, manifest.users, manifest.items) == (3, 2, 2)
    assert load_ratings("delicious").matrix().toarray().tolist() == [[1.0, 1.0], [0.0, 1.0]]
    with pytest.raises(InvalidRatings, match="no rating column"):
        read_ratings(tmp_path / "user_taggedbookmarks.dat")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"text,without\nratings,here\n"])
def test_unfit_sources(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "source.zip"
    file.write_bytes(content)
    with pytest.raises(InvalidFile):
        install(NAME, file)
    assert cached_files() == []


def test_archive_without_ratings(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "x")
    with pytest.raises(InvalidFile, match=r"holds no ratings\.csv"):
        install(NAME, path)


def test_damaged_cache(write_ratings: Write) -> None:
    path = Path(install(NAME, write_ratings()).path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InvalidFile, match="damaged"):
        load_ratings(NAME)


def test_unknown_and_missing() -> None:
    with pytest.raises(UnknownName, match="movielens-1m"):
        install("movielens-1")
    with pytest.raises(DataMissing, match="there is no file"):
        install(NAME, "nowhere")
    assert installed(NAME) is None


def test_missing_data_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FCLUB_DATA_DIR", str(tmp_path / "empty"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataMissing, match="fclub data movielens-1m"):
        fclub.make_environment("movielens")


def test_data_folder_is_used(
    write_ratings: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_ratings()
    (tmp_path / "ml-latest-small").mkdir()
    file.rename(tmp_path / "ml-latest-small" / "ratings.csv")
    monkeypatch.setenv("FCLUB_DATA_DIR", str(tmp_path))
    assert len(load_ratings(NAME)) > 0


def test_check_compares_with_the_published_matrix(
    write_ratings: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = dataclasses.replace(DATASETS["movielens-1m"], ratings=None, users=None)
    monkeypatch.setitem(DATASETS, "movielens-1m", unknown)
    install("movielens-1m", write_ratings("ratings.dat"))
    with pytest.raises(InvalidFile, match="published is cbd22bb7") as caught:
        check("movielens-1m")
    digest = str(caught.value).split("digest ")[1].split(",")[0]
    monkeypatch.setattr(cache, "PUBLISHED_MATRIX", digest)
    assert check("movielens-1m") == {"matrix": digest, "published": digest}


@pytest.mark.parametrize("wrong", ["ratings", "users"])
def test_a_file_of_another_size_is_another_file(
    write_ratings: Write, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    file = write_ratings()
    truth = read_ratings(file)
    size: dict[str, Any] = {"ratings": len(truth), "users": len(truth.user_ids)}
    monkeypatch.setitem(DATASETS, NAME, dataclasses.replace(DATASETS[NAME], **size))
    assert install(NAME, file).verified == "count"
    manifest = installed(NAME)
    assert manifest is not None
    Path(manifest.path).unlink()
    size[wrong] += 1
    monkeypatch.setitem(DATASETS, NAME, dataclasses.replace(DATASETS[NAME], **size))
    with pytest.raises(InvalidFile, match=f"{wrong}, this file .* it is another one"):
        install(NAME, file)
    assert cached_files() == []
