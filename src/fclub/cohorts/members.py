"""Who is in a federation: identities, and the member list that people accept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from fclub.cohorts.masks import KEY, field, number, public_identity
from fclub.errors import InvalidFile, InvalidSetting, UnknownMember
from fclub.paths import write_atomically

T = TypeVar("T")

MOST_MEMBERS = 1_000
NAME = re.compile(r"[A-Za-z0-9-]{1,48}")
"""Short enough for a roster of 160 bytes a member."""


class MemberEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server; `key` is its public Ed25519 key in hexadecimal digits."""

    name: str
    organisation: str
    key: str

    @property
    def public(self) -> bytes:
        return bytes.fromhex(self.key)


class MemberList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The members of a federation. A change makes a new list with a higher epoch."""

    federation: str
    epoch: int
    members: tuple[MemberEntry, ...]

    def __post_init__(self) -> None:
        _check_list(self)

    @cached_property
    def hash(self) -> bytes:
        parts = [field(b"fclub-members-1"), field(self.federation.encode()), number(self.epoch)]
        parts.append(number(len(self.members)))
        for member in self.members:
            parts += [field(member.name.encode()), field(member.organisation.encode()), member.public]
        return sha256(b"".join(parts)).digest()

    @cached_property
    def by_name(self) -> Mapping[str, MemberEntry]:
        return {member.name: member for member in self.members}

    def entry(self, name: str) -> MemberEntry:
        if name not in self.by_name:
            raise UnknownMember(
                f"{name} is not in epoch {self.epoch} of the member list; if it should be, its "
                "operator proposes a list that people accept"
            )
        return self.by_name[name]

    @property
    def default_colluders(self) -> int:
        """⌊(L−1)/3⌋ of the federation's L organisations, at least 1."""
        organisations = len({member.organisation for member in self.members})
        return max(1, (organisations - 1) // 3)

    def next(self, add: Sequence[MemberEntry], remove: Sequence[str]) -> MemberList:
        """A proposal: the next epoch. An entry whose name is there already replaces it (a new key)."""
        for name in remove:
            self.entry(name)
        kept = {name: entry for name, entry in self.by_name.items() if name not in remove}
        kept |= {entry.name: entry for entry in add}
        return MemberList(self.federation, self.epoch + 1, in_order(kept.values()))


def in_order(entries: Iterable[MemberEntry]) -> tuple[MemberEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.name.encode()))


def _check_list(members: MemberList) -> None:
    def require(condition: bool, expected: str, got: object) -> None:
        if not condition:
            raise InvalidSetting(f"member list: expected {expected}, got {got!r}", got)

    entries = members.members
    require(
        0 < len(members.federation.encode()) <= 64, "a federation of 1 to 64 bytes", members.federation
    )
    require(0 <= members.epoch < 2**63, "an epoch from 0 on", members.epoch)
    require(len(entries) <= MOST_MEMBERS, f"at most {MOST_MEMBERS:,} members", len(entries))
    for entry in entries:
        require(
            bool(NAME.fullmatch(entry.name)), "a name of letters, digits and -, up to 48", entry.name
        )
        require(0 < len(entry.organisation.encode()) <= 200, "an organisation", entry.organisation)
        require(bool(re.fullmatch(f"[0-9a-f]{{{2 * KEY}}}", entry.key)), "a public key", entry.key)
    for one, other in pairwise(entries):
        require(one.name.encode() < other.name.encode(), "names in ascending order", other.name)
    keys = [entry.key for entry in entries]
    require(len(set(keys)) == len(keys), "a key of its own for every member", "two equal keys")


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server's own name and Ed25519 key. The private half stays in its file."""

    name: str
    organisation: str
    private: str

    @property
    def secret(self) -> bytes:
        return bytes.fromhex(self.private)

    @property
    def entry(self) -> MemberEntry:
        """What goes into the member list."""
        return MemberEntry(self.name, self.organisation, public_identity(self.secret).hex())

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, {self.organisation!r})"


def make_identity(name: str, organisation: str) -> Identity:
    identity = Identity(name, organisation, os.urandom(KEY).hex())
    MemberList("check", 0, (identity.entry,))
    return identity


def write_identity(identity: Identity, path: Path) -> None:
    """Readable by its owner only; a file that is there is never replaced."""
    if path.exists():
        raise InvalidFile(
            f"{path} exists: a key that others have accepted must not be lost; choose another file"
        )
    with write_atomically(path, 0o600) as file:
        file.write(msgspec.json.format(msgspec.json.encode(identity)) + b"\n")


def read_identity(path: Path) -> Identity:
    if path.stat().st_mode & 0o077:
        raise InvalidFile(f"{path} can be read by others: expected mode 0600; run chmod 600 {path}")
    return _read(path, Identity, "an identity made by fclub identity")


def read_members(path: Path) -> MemberList:
    return _read(path, MemberList, "a member list")


def write_members(members: MemberList, path: Path) -> None:
    with write_atomically(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(members)) + b"\n")


def _read(path: Path, kind: type[T], expected: str) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: expected {expected}, got something else: {error}") from None
