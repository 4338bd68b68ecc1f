"""Exact sums by type that the shards of one site tell each other: they never leave the site.

The organisation that runs a site is trusted with the data of all its users, on whichever shard they are
(docs/specification/users.md). What a shard releases is computed without these sums.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from fclub.core.plus.type_sums import TypeSums
from fclub.core.types import Floats
from fclub.errors import InvalidMessage
from fclub.protocol.messages import MAX_COUNT
from fclub.protocol.plus.type_messages import read_sums, read_values, to_bytes, write_sums
from fclub.protocol.seam import Heard, State


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """A shard's users, how many it has forgotten so far, and the sums of all others by type."""

    users: int
    forgotten: int
    sums: bytes


_read = msgspec.msgpack.Decoder(_Told)


def tell(users: int, forgotten: int, sums: TypeSums) -> bytes:
    """What a shard tells the others."""
    return msgspec.msgpack.encode(_Told(users, forgotten, to_bytes(write_sums(sums))))


class Site:
    """What the other shards of a site have told last, by their numbers."""

    def __init__(self, types: int, dim: int) -> None:
        self.types, self.dim = types, dim
        self._users: dict[int, tuple[int, int]] = {}
        self._values: dict[int, Floats] = {}
        self._add()

    def _add(self) -> None:
        values = sum(self._values.values(), write_sums(TypeSums.zeros(self.types, self.dim)))
        self.sums = read_sums(values, self.types, self.dim)

    @property
    def users(self) -> int:
        return sum(users for users, _ in self._users.values())

    @property
    def shards(self) -> list[int]:
        return sorted(self._users)

    def hear(self, shard: int, told: bytes) -> Heard:
        """Take a shard's sums in place of its earlier ones, or take those back if it tells nothing."""
        before = self._users.get(shard)
        if not told:
            self._users.pop(shard, None)
            self._values.pop(shard, None)
            self._add()
            return Heard.NOTHING if before is None else Heard.INSTEAD
        try:
            message = _read.decode(told)
        except msgspec.MsgspecError as error:
            raise InvalidMessage(f"a shard tells what cannot be read: {error}") from None
        if not 0 <= message.forgotten <= message.users <= MAX_COUNT:
            raise InvalidMessage(f"a shard tells of {message.users} users")
        users = message.users, message.forgotten
        values = read_values(message.sums, self.types, self.dim)
        if before == users and np.array_equal(self._values[shard], values):
            return Heard.NOTHING
        self._users[shard], self._values[shard] = users, values
        self._add()
        # A shard that was restored has forgotten fewer users.
        outdated = before is not None and (before[1] != users[1] or before[0] > users[0])
        return Heard.INSTEAD if outdated else Heard.NEWS

    def state(self) -> State:
        return {str(shard): values for shard, values in self._values.items()}, {
            "site": [[shard, *users] for shard, users in self._users.items()]
        }

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        """Older files know no sites."""
        self._users = {shard: (users, gone) for shard, users, gone in values.get("site", [])}
        self._values = {shard: arrays[str(shard)] for shard in self._users}
        self._add()
