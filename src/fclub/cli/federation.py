"""`fclub federation`."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from fclub.cli.screen import screen
from fclub.cohorts.members import MemberEntry
from fclub.errors import InvalidFile, InvalidSetting
from fclub.service.http.keys import ADMIN, METRICS, KeyFile, keys_of
from fclub.service.kits.authority import expiry
from fclub.service.kits.folder import BROKER, Folder, global_configuration, write_secret
from fclub.service.settings import LocalSettings, load_settings, parse_assignments

app = typer.Typer(add_completion=False, help="Let organisations join, pause and leave a federation.")

FOLDER = typer.Argument(help="Folder of the federation; whoever reads it can let anybody in.")
KEY = typer.Option(help="Its public key: what fclub identity prints, or its file with --json.")
ORGANISATION = typer.Argument(metavar="ORG", help="Name of an organisation's local server.")


@app.callback()
def federation() -> None:
    """Let organisations join, pause and leave; neither broker nor global server restarts for it."""


@app.command("init", epilog="Example: fclub federation init shops --name shops --dim 10")
def init(
    folder: Annotated[Path, FOLDER],
    name: Annotated[str, typer.Option(help="Name of the federation.")],
    dim: Annotated[int, typer.Option(help="Number of features of an item.")],
    address: Annotated[str, typer.Option(help="Where members find the broker.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the broker.")] = 4222,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A key=value of the model.")
    ] = None,
) -> None:
    """Make the federation's authority, its broker's configuration and the global server's settings."""
    options = parse_assignments(setting or [], **{"model.dim": dim, "store": "unused"})
    model = load_settings(LocalSettings, None, options, environment={}).model
    made = Folder.make(folder, name, model, address, port)
    store = made.path / "global.db"
    write_secret(made.path / "global.toml", global_configuration(store))
    keys = KeyFile(keys_of(store))
    for who, scopes in {"prometheus": [METRICS], "operator": [METRICS, ADMIN]}.items():
        typer.echo(f"token of the key {who} ({', '.join(scopes)}): {keys.add(who, scopes)}")
    typer.echo("They are written down nowhere else; fclub keys makes others. Now run, each for itself:")
    typer.echo(f"  nats-server --config {made.path / 'nats.conf'}")
    typer.echo(f"  fclub global --federation {made.path}")
    typer.echo(f"  fclub federation add {made.path} ORG")


@app.command("add", epilog="Example: fclub federation add shops north --key north.json")
def add(
    folder: Annotated[Path, FOLDER],
    organisation: Annotated[str, ORGANISATION],
    key: Annotated[str, KEY],
) -> None:
    """Let an organisation in: write ORG.kit, which it runs as fclub local --kit ORG.kit.

    What it says counts only if it is signed with its key. That is also in the next member list, which
    counts for a member only after that has compared its hash with the others and accepted it (fclub
    members accept HASH ORG.kit members.json).
    """
    found = Folder(folder)
    found.add(organisation, _entry(organisation, key))
    typer.echo(f"{found.kit_of(organisation)}: hand it over secretly; it opens an account")
    _tell(found, True)


@app.command("remove", epilog="Example: fclub federation remove shops north")
def remove(folder: Annotated[Path, FOLDER], organisation: Annotated[str, ORGANISATION]) -> None:
    """Retire an organisation for good.

    Its account ends, and so does all that waits for it. What it has released stays in what the others
    have learned. Its name is never given again.
    """
    found = Folder(folder)
    listed = organisation in found.charter.members.by_name
    found.remove(organisation)
    typer.echo(f"{organisation} has left; what it released stays in the sums of the others")
    _tell(found, listed)


@app.command("suspend", epilog="Example: fclub federation suspend shops north")
def suspend(folder: Annotated[Path, FOLDER], organisation: Annotated[str, ORGANISATION]) -> None:
    """Shut an organisation out until `resume`; both sides keep what they have to say."""
    found = Folder(folder)
    found.suspend(organisation)
    _tell(found)


@app.command("resume", epilog="Example: fclub federation resume shops north")
def resume(folder: Annotated[Path, FOLDER], organisation: Annotated[str, ORGANISATION]) -> None:
    """Let a suspended organisation in again."""
    found = Folder(folder)
    found.resume(organisation)
    _tell(found)


@app.command("rotate", epilog="Example: fclub federation rotate shops north")
def rotate(
    folder: Annotated[Path, FOLDER],
    organisation: Annotated[
        str, typer.Argument(metavar="ORG", help="An organisation, `global` or `broker`.")
    ],
    overlap: Annotated[
        bool, typer.Option(help="Accept the certificate, or key, in use until the next rotation.")
    ] = False,
    key: Annotated[str, KEY] = "",
) -> None:
    """Issue a new certificate; the one before opens nothing any more. --key changes its key, too."""
    found = Folder(folder)
    found.rotate(organisation, overlap, _entry(organisation, key) if key else None)
    if organisation != BROKER:
        typer.echo(f"{found.kit_of(organisation)}: a new kit; its server reads it again at SIGHUP")
    _tell(found, bool(key))


@app.command("list", epilog="Example: fclub federation list shops")
def list_(
    folder: Annotated[Path, FOLDER],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Who is in, who pauses, who has left, and when certificates end."""
    found = Folder(folder)
    charter = found.charter
    rows: list[tuple[str, str, datetime]] = [
        (one.name, one.state, datetime.fromisoformat(one.expires))
        for one in (charter.hub, *charter.organisations)
    ]
    for name in (BROKER, "ca"):
        rows.append((name, "-", expiry((found.path / f"{name}.pem").read_text())))
    if as_json:
        listed = [{"name": n, "state": s, "expires": e.isoformat()} for n, s, e in rows]
        facts = {"federation": charter.name, "url": found.url, "epoch": charter.members.epoch}
        typer.echo(json.dumps(facts | {"organisations": listed}))
        return
    table, now = Table("name", "state", "certificate ends", "days left"), datetime.now(UTC)
    for name, state, ends in rows:
        table.add_row(name, state, f"{ends:%Y-%m-%d}", str((ends - now).days))
    screen().print(table)
    epoch, digest = charter.members.epoch, charter.members.hash.hex()
    typer.echo(f"{charter.name} at {found.url}; member list: epoch {epoch}, hash {digest}")


def _tell(folder: Folder, proposed: bool = False) -> None:
    if proposed:
        file, members = folder.path / "members.json", folder.charter.members
        typer.echo(
            f"{file}: proposed epoch {members.epoch}, hash {members.hash.hex()}; "
            "members compare the hash by another way and accept it"
        )
    for line in folder.reload():
        typer.echo(line)


def _entry(name: str, given: str) -> MemberEntry:
    if re.fullmatch("[0-9a-f]{64}", given):
        return MemberEntry(name, name, given)
    path = Path(given)
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=MemberEntry)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidFile(
            f"--key: expected 64 hexadecimal digits or a file of fclub identity --json: {error}"
        ) from None
    if entry.name != name:
        raise InvalidSetting(f"--key: expected the key of {name}, got that of {entry.name}", entry.name)
    return entry
