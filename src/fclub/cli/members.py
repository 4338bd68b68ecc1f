"""`fclub members`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from fclub.cli.screen import screen
from fclub.cohorts.members import MemberEntry, MemberList, read_members, write_members
from fclub.errors import InvalidFile, InvalidSetting

app = typer.Typer(add_completion=False, help="Look after the member list of a federation.")

AS_JSON = typer.Option("--json", help="Print JSON.")
LIST = typer.Argument(help="A member list, as another operator has sent it, or a kit that holds one.")


@app.callback()
def members() -> None:
    """Look after the member list of a federation. It never comes from the global server."""


@app.command("show", epilog="Example: fclub members show members.json")
def show(file: Annotated[Path, LIST], as_json: Annotated[bool, AS_JSON] = False) -> None:
    """Who is in a list, and its hash, which operators compare by another way than the list came."""
    found = _read(file)
    if as_json:
        facts = msgspec.to_builtins(found) | {"hash": found.hash.hex()}
        typer.echo(json.dumps(facts | {"colluders": found.default_colluders}))
        return
    table = Table("member", "organisation", "public key")
    for entry in found.members:
        table.add_row(entry.name, entry.organisation, f"{entry.key[:16]}…")
    screen().print(table)
    typer.echo(f"{found.federation}, epoch {found.epoch}, hash {found.hash.hex()}")
    typer.echo(f"organisations that may collude with the global server: {found.default_colluders}")


@app.command("accept", epilog="Example: fclub members accept HASH proposed.json members.json")
def accept(
    wanted: Annotated[str, typer.Argument(metavar="HASH", help="The hash that was compared.")],
    file: Annotated[Path, LIST],
    into: Annotated[Path, typer.Argument(help="The list that this server works with.")],
) -> None:
    """Accept a list: this person has compared its hash and knows who is in it.

    Epochs never go back. The server takes it over when it starts or reloads, and takes part in secure
    sums with it from the first slot on that begins later.
    """
    found = _read(file)
    if found.hash.hex() != wanted.lower():
        raise InvalidFile(f"{file}: expected the hash {wanted}, got {found.hash.hex()}")
    if into.exists():
        held = read_members(into)
        if held.federation != found.federation:
            raise InvalidSetting(f"expected a list of {held.federation}, got one of {found.federation}")
        if found.epoch <= held.epoch and found != held:
            raise InvalidSetting(f"expected an epoch above {held.epoch}, got {found.epoch}")
    write_members(found, into)
    typer.echo(f"{into}: epoch {found.epoch} with {len(found.members)} members")


@app.command("propose", epilog="Example: fclub members propose new.json --to members.json --add d.json")
def propose(
    file: Annotated[Path, typer.Argument(help="Where the proposal goes, to be sent to all operators.")],
    to: Annotated[Path | None, typer.Option(help="The list that is changed.")] = None,
    federation: Annotated[str, typer.Option(help="For a first list: the federation's name.")] = "",
    add: Annotated[
        list[Path] | None, typer.Option(help="What fclub identity --json printed; a new key replaces.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Name of a member that leaves.")] = None,
) -> None:
    """Write the next epoch of a list, or the first; nothing is accepted by this."""
    if (to is None) == (not federation):
        raise InvalidSetting("expected either --to or --federation")
    held = MemberList(federation, 0, ()) if to is None else _read(to)
    found = held.next([_entry(path) for path in add or ()], remove or ())
    write_members(found, file)
    typer.echo(f"{file}: epoch {found.epoch}, hash {found.hash.hex()}")


def _read(path: Path) -> MemberList:
    """A list, or the one that a kit proposes."""
    if path.suffix != ".kit":
        return read_members(path)
    try:
        tree = tomllib.loads(path.read_text())
        return msgspec.convert(tree["members"], MemberList)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, msgspec.ValidationError) as error:
        raise InvalidFile(f"{path}: expected a kit with a member list, got: {error}") from None


def _entry(path: Path) -> MemberEntry:
    try:
        return msgspec.json.decode(path.read_bytes(), type=MemberEntry)
    except msgspec.DecodeError as error:
        raise InvalidFile(
            f"{path}: expected the public half that fclub identity --json prints, got: {error}"
        ) from None
