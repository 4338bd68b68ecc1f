"""At which shard of a site a user is at home."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from fclub.errors import InvalidSetting
from fclub.paths import write_atomically

MOST = 256
"""Shards of a site: decisions end with the number of theirs, in one byte."""


class Homes:
    """New names are spread evenly; `counts` are all numbers of shards a site has had, the present last.

    A name that was new under an earlier number stays where it was put then: `places` are where it may
    be known, and where it goes if it is known nowhere comes first.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)

    @property
    def shards(self) -> int:
        """Shards that have users: when a site shrinks, those that get no new ones still serve."""
        return max(self.counts)

    def places(self, user: str) -> list[int]:
        number = int.from_bytes(blake2b(user.encode(), digest_size=8).digest())
        return list(dict.fromkeys(number % count for count in reversed(self.counts)))


def homes_of(store: Path, count: int) -> Homes:
    """The homes of a site, whose numbers of shards are kept in a file beside its first store.

    A store without that file was one ordinary local server, and becomes the first shard.
    """
    if not 1 <= count <= MOST:
        raise InvalidSetting(f"--shards: a site has 1 to {MOST} shards, got {count}", count)
    file = shards_file(store)
    past = json.loads(file.read_bytes()) if file.exists() else [1] * store.exists()
    counts = [*(known for known in past if known != count), count]
    if counts != past:
        with write_atomically(file) as out:
            out.write(json.dumps(counts).encode())
    return Homes(counts)


def shards_file(store: Path) -> Path:
    return store.with_name(f"{store.name}.shards")


def store_of(store: Path, shard: int) -> Path:
    """The first shard keeps the site's own store."""
    return store if shard == 0 else store.with_name(f"{store.stem}-{shard}{store.suffix}")


def name_of(name: str, shard: int) -> str:
    """The first shard keeps the site's own name."""
    return name if shard == 0 else f"{name}-{shard}"
