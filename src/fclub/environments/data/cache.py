"""Public data sets: where they come from, and their copies in the cache: taken in, looked up, checked.

The cache holds one file per data set, `data/NAME.npz`: the ratings as arrays and a manifest. It is
moved into place when it is complete, so a failed download or a faulty file leaves nothing behind.

A source may be the file itself, or a folder, zip or tar archive in which it is the one that matters.
Only MovieLens-100k, -1M and -25M have checksums that their publisher states. A file that is given is
compared with the numbers of ratings and users that are known; where neither is known, only its
structure is checked. The digest of what was read is recorded beside it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from fclub.environments.data.pipeline import blob_sha1, densest
from fclub.environments.data.ratings_file import Ratings, ratings_of, read_ratings
from fclub.errors import DataMissing, InvalidFile, InvalidRatings
from fclub.paths import cache_root, write_atomically

if TYPE_CHECKING:  # optional
    import pandas
import os

from fclub.errors import UnknownName

_GROUPLENS = "https://files.grouplens.org/datasets"
_RESEARCH = "research use; no redistribution or commercial use without permission; cite the publisher"


@dataclass(frozen=True)
class DataSet:
    """`members` are names of its ratings file; `folder` is what unpacking it makes; `ratings` and
    `users` how many it holds. `md5` is the archive's, where its publisher states one. `by_hand`: the
    publisher asks for consent first, so it cannot be fetched for you. `duplicates`, `rated`: see
    `read_ratings`.
    """

    url: str
    licence: str
    folder: str
    members: tuple[str, ...]
    ratings: int | None = None
    users: int | None = None
    md5: str | None = None
    by_hand: bool = False
    duplicates: str = "refuse"
    rated: bool = True


DATASETS: dict[str, DataSet] = {
    "movielens-1m": DataSet(
        f"{_GROUPLENS}/movielens/ml-1m.zip",
        f"GroupLens, University of Minnesota: {_RESEARCH}",
        "ml-1m",
        ("ratings.dat",),
        ratings=1_000_209,
        users=6_040,
        md5="c4d9eecfca2ab87c1945afe126590906",
    ),
    "movielens-100k": DataSet(
        f"{_GROUPLENS}/movielens/ml-100k.zip",
        f"GroupLens, University of Minnesota: {_RESEARCH}",
        "ml-100k",
        ("u.data",),
        ratings=100_000,
        users=943,
        md5="0e33842e24a9c977be4e0107933c0723",
    ),
    "movielens-latest-small": DataSet(
        f"{_GROUPLENS}/movielens/ml-latest-small.zip",
        "GroupLens, University of Minnesota: research use, redistribution under the same terms",
        "ml-latest-small",
        ("ratings.csv",),
    ),
    "movielens-25m": DataSet(
        f"{_GROUPLENS}/movielens/ml-25m.zip",
        f"GroupLens, University of Minnesota: {_RESEARCH}",
        "ml-25m",
        ("ratings.csv",),
        ratings=25_000_095,
        users=162_541,
        md5="6b51fb2759a8657d3bfcbfc42b592ada",
    ),
    "yelp": DataSet(
        "https://www.yelp.com/dataset",
        "Yelp Dataset License: academic use, no redistribution; agree on its page, then use --from",
        "yelp",
        ("yelp_academic_dataset_review.json", "review.json"),
        by_hand=True,
        duplicates="last",
    ),
    "movietweetings": DataSet(
        "https://raw.githubusercontent.com/sidooms/MovieTweetings/master/snapshots/100K/ratings.dat",
        "MIT licence (Simon Dooms, Ghent University)",
        "movietweetings/100K",
        ("ratings.dat",),
        ratings=100_000,
    ),
    "lastfm": DataSet(
        f"{_GROUPLENS}/hetrec2011/hetrec2011-lastfm-2k.zip",
        "HetRec 2011, from Last.fm: non-commercial use; cite the workshop and Last.fm",
        "hetrec2011-lastfm-2k",
        ("user_artists.dat",),
        ratings=92_834,
        users=1_892,
    ),
    "delicious": DataSet(
        f"{_GROUPLENS}/hetrec2011/hetrec2011-delicious-2k.zip",
        "HetRec 2011, from Delicious: non-commercial use; cite the workshop and Delicious",
        "hetrec2011-delicious-2k",
        ("user_taggedbookmarks.dat", "user_taggedbookmarks-timestamps.dat"),
        ratings=104_799,
        users=1_867,
        duplicates="last",
        rated=False,
    ),
}


def dataset(name: str) -> DataSet:
    if name not in DATASETS:
        raise UnknownName("data set", name, DATASETS)
    return DATASETS[name]


def data_folders() -> list[Path]:
    """Where data is looked for: FCLUB_DATA_DIR, the cache, ./data."""
    own = os.environ.get("FCLUB_DATA_DIR")
    return [*([Path(own)] if own else []), cache_root() / "data", Path("data")]


Source: TypeAlias = Union[str, "PathLike[str]", "pandas.DataFrame"]
"""The name of a data set, a file, folder or archive with ratings, or a data frame of them."""

PUBLISHED_MATRIX = "cbd22bb7ffd80dbd363962b197eae52dc09d040c"
"""Git blob id of the published 1000×1000 matrix made from MovieLens-1M."""


@dataclass(frozen=True)
class Manifest:
    """What is in the cache. `verified`: by `checksum`, `count` of ratings and users, or `structure`."""

    name: str
    source: str
    sha256: str
    verified: str
    ratings: int
    users: int
    items: int
    path: str


def _cached(name: str) -> Path:
    return cache_root() / "data" / f"{name}.npz"


def install(name: str, source: object = None, bar: Any = None) -> Manifest:
    """Take a data set into the cache: from its official address, or from a file, folder or archive.

    `bar` shows progress: an object with `total`, `update`, `reset` and `close`, as pooch takes it.
    """
    wanted = dataset(name)
    target = _cached(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as folder:
        given = Path(str(source)) if source is not None else _download(name, Path(folder), bar)
        digests = _digests(given) if given.is_file() else {}
        file = ratings_inside(given, wanted.members, Path(folder))
        shown = file if given.is_dir() else source or wanted.url
        _check_form(name, file)
        ratings = _read(file, shown, wanted.duplicates, wanted.rated)
        manifest = Manifest(
            name=name,
            source=str(source) if source is not None else wanted.url,
            sha256=digests.get("sha256") or _digests(file)["sha256"],
            verified=_verify(name, digests.get("md5"), ratings),
            ratings=len(ratings),
            users=len(ratings.user_ids),
            items=len(ratings.item_ids),
            path=str(target),
        )
        text = np.frombuffer(json.dumps(asdict(manifest)).encode(), dtype=np.uint8)
        with write_atomically(target) as complete:
            np.savez_compressed(complete, manifest=text, **vars(ratings))
    return manifest


def _check_form(name: str, file: Path) -> None:
    """Where no numbers are known, the ending at least says that it is another file."""
    wanted = DATASETS[name]
    if wanted.ratings is None and file.suffix not in {Path(one).suffix for one in wanted.members}:
        raise InvalidFile(
            f"{name} is in {' or '.join(wanted.members)}, not in a file as {file.name}; "
            "to use it all the same, give it to an environment as its path"
        )


def _download(name: str, folder: Path, bar: Any) -> Path:
    import pooch

    wanted = DATASETS[name]
    if wanted.by_hand:
        raise DataMissing(f"{name} has to be got by hand from {wanted.url}; then {_by_hand(name)}")
    pooch.get_logger().setLevel("ERROR")
    known = f"md5:{wanted.md5}" if wanted.md5 else None
    fetch = pooch.HTTPDownloader(progressbar=bar if bar is not None else False)
    file_name = wanted.url.rsplit("/", 1)[-1]
    try:
        path = pooch.retrieve(wanted.url, known, fname=file_name, path=folder, downloader=fetch)
    except (OSError, ValueError) as error:
        reason = "its checksum is wrong" if isinstance(error, ValueError) else type(error).__name__
        raise DataMissing(
            f"{name} could not be fetched from {wanted.url} ({reason}); "
            f"where there is a network, get it, then {_by_hand(name)}"
        ) from None
    return Path(path)


def _read(file: Path, shown: object, duplicates: str = "refuse", rated: bool = True) -> Ratings:
    """Faults are reported under a name that the caller knows, not under that of an unpacked copy."""
    try:
        return read_ratings(file, duplicates, rated)
    except InvalidRatings as error:
        raise InvalidRatings(shown, error.line, error.reason) from None


def _by_hand(name: str) -> str:
    return f"fclub data {name} --from FILE"


def _digests(path: Path) -> dict[str, str]:
    sums = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            for digest in sums.values():
                digest.update(block)
    return {kind: digest.hexdigest() for kind, digest in sums.items()}


def _verify(name: str, md5: str | None, ratings: Ratings) -> str:
    """How the file was verified to be the data set; a file that is known to be another is refused."""
    wanted = DATASETS[name]
    if wanted.md5 is not None and md5 == wanted.md5:
        return "checksum"
    known = {"ratings": wanted.ratings, "users": wanted.users}
    found = {"ratings": len(ratings), "users": len(ratings.user_ids)}
    for what, number in known.items():
        if number is not None and number != found[what]:
            raise InvalidFile(
                f"{name} has {number:,} {what}, this file {found[what]:,}: it is another one; "
                "to use it all the same, give it to an environment as its path"
            )
    return "structure" if wanted.ratings is None else "count"


def _open(name: str) -> tuple[Ratings, Manifest]:
    path = _cached(name)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        manifest = Manifest(**json.loads(arrays.pop("manifest").tobytes()))
        return Ratings(**arrays), manifest
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidFile(f"{path} is damaged ({error}); fclub data {name} makes it anew") from None


def installed(name: str) -> Manifest | None:
    """What the cache says about a data set, or None if it is not there."""
    dataset(name)
    return _open(name)[1] if _cached(name).is_file() else None


def load_ratings(source: Source, duplicates: str = "refuse") -> Ratings:
    """The ratings of a data set by name, of a file, folder or archive of one's own, of a data frame.

    `duplicates` is for one's own; see `read_ratings`.
    """
    if not isinstance(source, str | PathLike):
        return ratings_of(source, duplicates)
    source = str(source)
    path = _cached(source) if source in DATASETS else Path(source)
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _load_ratings(source, tuple(data_folders()), stamp, duplicates)


def name_of(source: Source, ratings: Ratings) -> str:
    """What a trace says about where its ratings come from."""
    if isinstance(source, str | PathLike):
        return str(source)
    return f"data frame of {len(ratings):,} ratings, digest {ratings.digest}"


@lru_cache(maxsize=4)
def _load_ratings(source: str, folders: tuple[Path, ...], stamp: int, duplicates: str) -> Ratings:
    """Read once per process, until the file's time `stamp` changes."""
    if source not in DATASETS:
        with tempfile.TemporaryDirectory() as folder:
            names = tuple(dict.fromkeys(m for known in DATASETS.values() for m in known.members))
            file = ratings_inside(Path(source), names, Path(folder))
            return _read(file, file if Path(source).is_dir() else source, duplicates)
    if _cached(source).is_file():
        return _open(source)[0]
    wanted = DATASETS[source]
    for place in folders:
        for member in wanted.members:
            if (file := place / wanted.folder / member).is_file():
                return read_ratings(file, wanted.duplicates, wanted.rated)
    raise DataMissing(f"{source} is not here: run fclub data {source}, or name a file ({wanted.url})")


def check(name: str) -> dict[str, str]:
    """The digest of the densest 1000×1000 matrix; for MovieLens-1M it must be the published one.

    The published matrix lacks the file's first rating: its maker dropped a header that is not there.
    """
    ratings = load_ratings(name)
    if name != "movielens-1m":
        return {"matrix": blob_sha1(densest(ratings, 1000).matrix)}
    matrix = blob_sha1(densest(ratings.keep(np.arange(1, len(ratings))), 1000).matrix)
    if matrix != PUBLISHED_MATRIX:
        raise InvalidFile(f"{name}: the matrix has digest {matrix}, published is {PUBLISHED_MATRIX}")
    return {"matrix": matrix, "published": PUBLISHED_MATRIX}


def ratings_inside(source: Path, names: Sequence[str], scratch: Path) -> Path:
    """The file with one of these names in a folder or archive (unpacked to `scratch`), or the file."""
    if source.is_dir():
        found = _pick((str(p) for p in sorted(source.rglob("*")) if p.is_file()), names)
        return Path(_named(source, found, names))
    if not source.is_file():
        raise DataMissing(f"there is no file or folder {source}")
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                member = _named(source, _pick(archive.namelist(), names), names)
                return _unpack(archive.open(member), member, scratch)
        if tarfile.is_tarfile(source):
            with tarfile.open(source) as bundle:
                member = _named(source, _pick(bundle.getnames(), names), names)
                content = bundle.extractfile(member)
                if content is None:
                    raise InvalidFile(f"{member} in {source} is not a file")
                return _unpack(content, member, scratch)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise InvalidFile(f"{source} is a damaged archive: {error}") from None
    return source


def _pick(members: Iterable[str], names: Sequence[str]) -> str | None:
    """The least deep member with a wanted name."""
    fitting = [m for m in members if m.rsplit("/", 1)[-1] in names]
    return min(fitting, key=lambda m: (m.count("/"), m), default=None)


def _named(source: Path, found: str | None, names: Sequence[str]) -> str:
    if found is None:
        raise InvalidFile(f"{source} holds no {' or '.join(names)}")
    return found


def _unpack(content: IO[bytes], member: str, scratch: Path) -> Path:
    target = scratch / member.rsplit("/", 1)[-1]
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
    return target
