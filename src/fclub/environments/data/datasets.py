"""Public data sets: where they come from and what may be done with them.

Only MovieLens-1M and -25M have checksums that their publisher states. A file that is given is compared
with the numbers of ratings and users that are known; where neither is known, only its structure is
checked. The digest of what was read is recorded beside it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fclub.errors import UnknownName
from fclub.paths import cache_root

_GROUPLENS = "https://files.grouplens.org/datasets"
_RESEARCH = "research use; no redistribution or commercial use without permission; cite the publisher"


@dataclass(frozen=True)
class DataSet:
    """`members` are names of its ratings file; `folder` is what unpacking it makes; `ratings` and
    `users` how many it holds. `md5` is the archive's, where its publisher states one. `by_hand`: the
    publisher asks for consent first, so it cannot be fetched for you. `duplicates`: see `read_ratings`.
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
}


def dataset(name: str) -> DataSet:
    if name not in DATASETS:
        raise UnknownName("data set", name, DATASETS)
    return DATASETS[name]


def data_folders() -> list[Path]:
    """Where data is looked for: FCLUB_DATA_DIR, the cache, ./data."""
    own = os.environ.get("FCLUB_DATA_DIR")
    return [*([Path(own)] if own else []), cache_root() / "data", Path("data")]
