"""`fclub identity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fclub.cohorts.members import make_identity, read_identity, write_identity
from fclub.errors import InvalidSetting

app = typer.Typer(add_completion=False)


@app.command(
    "identity",
    epilog="Example: fclub identity shop.key --name shop --organisation 'Shop Ltd' --json > shop.json",
)
def identity(
    file: Annotated[Path, typer.Argument(help="Where the private key is, or will be; mode 0600.")],
    name: Annotated[str, typer.Option(help="To make a key: the member's name.")] = "",
    organisation: Annotated[
        str, typer.Option(help="To make a key: who runs the member. All that one party runs has one.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the entry of the member list.")
    ] = False,
) -> None:
    """Make a server's identity for secure sums, or show its public half.

    The private half never leaves FILE: back it up as you do with other keys, not beside the store.
    Rotation: make a key of the same name in another file, propose a list with it, and change over when
    the others have accepted that list. Loss: the same; until then the server takes part in no sum.
    """
    if not file.exists():
        if not (name and organisation):
            raise InvalidSetting(
                f"{file} does not exist: --name and --organisation make a new identity"
            )
        write_identity(make_identity(name, organisation), file)
    entry = read_identity(file).entry
    if as_json:
        typer.echo(msgspec.json.encode(entry).decode())
    else:
        typer.echo(f"{entry.name} of {entry.organisation}, public key {entry.key}")
