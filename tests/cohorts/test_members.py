"""Member lists and identities, and the commands for them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import msgspec
import pytest
from tests.cohorts.lab import identity_of, list_of
from typer.testing import CliRunner

from fclub.cli import identity as identity_command
from fclub.cli import members as members_command
from fclub.cohorts.members import (
    MemberEntry,
    MemberList,
    make_identity,
    read_identity,
    read_members,
    write_identity,
    write_members,
)
from fclub.errors import InvalidFile, InvalidSetting, UnknownMember

A, B, C = (identity_of(name) for name in ("a", "b", "c"))
THREE = list_of([A, B, C])


def test_the_hash_has_every_field() -> None:
    moved = MemberEntry("c", "of b", C.entry.key)
    lists = [
        THREE,
        list_of([A, B]),
        list_of([A, B, C], epoch=2),
        MemberList("other", 1, THREE.members),
        MemberList("lab", 1, (*THREE.members[:2], moved)),
        list_of([A, B, identity_of("c", seed="new key")]),
    ]
    assert len({members.hash for members in lists}) == len(lists)
    assert THREE.hash == list_of([C, A, B]).hash


@pytest.mark.parametrize(
    "entries",
    [
        (B.entry, A.entry),
        (A.entry, A.entry),
        (A.entry, MemberEntry("b", "x", A.entry.key)),
        (MemberEntry("a b", "x", A.entry.key),),
        (MemberEntry("a" * 49, "x", A.entry.key),),
        (MemberEntry("a", "", A.entry.key),),
        (MemberEntry("a", "x", "00"),),
        (MemberEntry("a", "x", A.entry.key.upper()),),
    ],
)
def test_impossible_lists_are_refused(entries: tuple[MemberEntry, ...]) -> None:
    with pytest.raises(InvalidSetting, match="member list: expected"):
        MemberList("lab", 1, entries)


def test_more_than_a_thousand_members_are_refused() -> None:
    entries = tuple(MemberEntry(f"m{i:04}", "x", f"{i:064x}") for i in range(1_001))
    assert len(MemberList("lab", 1, entries[:1_000]).members) == 1_000
    with pytest.raises(InvalidSetting, match="at most 1,000 members, got 1001"):
        MemberList("lab", 1, entries)


@pytest.mark.parametrize(("organisations", "colluders"), [(1, 1), (3, 1), (7, 2), (10, 3), (40, 13)])
def test_a_third_of_the_other_organisations_may_collude(organisations: int, colluders: int) -> None:
    entries = tuple(MemberEntry(f"m{i:02}", f"o{i}", f"{i:064x}") for i in range(organisations))
    extra = tuple(MemberEntry(f"n{i:02}", "o0", f"{99 - i:064x}") for i in range(5))
    assert MemberList("lab", 1, (*entries, *extra)).default_colluders == colluders


def test_a_proposal_is_the_next_epoch() -> None:
    renewed = identity_of("b", seed="rotated")
    proposal = THREE.next([renewed.entry, identity_of("d").entry], ["a"])
    assert [entry.name for entry in proposal.members] == ["b", "c", "d"]
    assert proposal.epoch == 2
    assert proposal.entry("b").key == renewed.entry.key
    with pytest.raises(UnknownMember, match="x is not in epoch 1"):
        THREE.next([], ["x"])


def test_a_private_key_stays_in_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "shop.key"
    made = make_identity("shop", "Shop Ltd")
    write_identity(made, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_identity(path) == made
    assert made.private not in repr(made)
    with pytest.raises(InvalidFile, match="exists"):
        write_identity(make_identity("shop", "Shop Ltd"), path)
    assert read_identity(path) == made
    path.chmod(0o640)
    with pytest.raises(InvalidFile, match="chmod 600"):
        read_identity(path)


def test_what_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    write_members(THREE, path)
    assert read_members(path) == THREE
    for wrong in (b"", b"\xff", b"{}", path.read_bytes().replace(b"epoch", b"epach")):
        path.write_bytes(wrong)
        with pytest.raises(InvalidFile, match="expected a member list"):
            read_members(path)


def run(app: object, *words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])  # type: ignore[arg-type]
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_operators_make_propose_and_accept(tmp_path: Path) -> None:
    public = []
    for name in ("a", "b", "c"):
        words = (tmp_path / f"{name}.key", "--name", name, "--organisation", f"Org {name}")
        run(identity_command.app, *words)
        told = json.loads(run(identity_command.app, tmp_path / f"{name}.key", "--json"))
        assert set(told) == {"name", "organisation", "key"}
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
        public += ["--add", tmp_path / f"{name}.json"]
    proposed = tmp_path / "proposed.json"
    run(members_command.app, "propose", proposed, "--federation", "shops", *public)
    shown = json.loads(run(members_command.app, "show", proposed, "--json"))
    assert shown["epoch"] == 1
    assert shown["colluders"] == 1
    assert [entry["name"] for entry in shown["members"]] == ["a", "b", "c"]
    assert shown["hash"] == read_members(proposed).hash.hex()
    table = run(members_command.app, "show", proposed)
    assert shown["hash"] in table
    assert "Org b" in table

    accepted = tmp_path / "accepted.json"
    with pytest.raises(InvalidFile, match="expected the hash"):
        run(members_command.app, "accept", "0" * 64, proposed, accepted)
    assert not accepted.exists()
    run(members_command.app, "accept", shown["hash"], proposed, accepted)
    assert read_members(accepted) == read_members(proposed)

    following = tmp_path / "following.json"
    run(members_command.app, "propose", following, "--to", accepted, "--remove", "c")
    assert read_members(following).epoch == 2
    run(members_command.app, "accept", read_members(following).hash.hex(), following, accepted)
    with pytest.raises(InvalidSetting, match="epoch above 2"):
        run(members_command.app, "accept", shown["hash"], proposed, accepted)


def test_the_wrong_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="--name and --organisation"):
        run(identity_command.app, tmp_path / "new.key")
    with pytest.raises(InvalidSetting, match="--to or --federation"):
        run(members_command.app, "propose", tmp_path / "p.json")
    write_identity(A, tmp_path / "a.key")
    entry = tmp_path / "a.json"
    entry.write_bytes((tmp_path / "a.key").read_bytes())
    with pytest.raises(InvalidFile, match="public half"):
        run(members_command.app, "propose", tmp_path / "p.json", "--federation", "x", "--add", entry)
    assert msgspec.json.decode(entry.read_bytes())["private"] == A.private
