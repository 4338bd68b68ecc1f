"""`fclub store`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fclub.service.nodes.parts import check_copy, forget_user
from fclub.service.store.backup import backup_store, restore_store
from fclub.service.store.books import in_words, read_sent
from fclub.service.store.export import export_log

app = typer.Typer(add_completion=False, help="Look after the store of a server.")

STORE = typer.Argument(help="SQLite file of a local server.")
ANY_STORE = typer.Argument(help="SQLite file of a local or of the global server.")
AS_JSON = typer.Option("--json", help="Print JSON.")


@app.callback()
def store() -> None:
    """Look after the store of a server."""


def _show(facts: dict[str, object], as_json: bool, text: str) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


@app.command("backup", epilog="Example: fclub store backup shop.db /backups/shop-monday.db")
def backup(
    path: Annotated[Path, ANY_STORE],
    file: Annotated[Path, typer.Argument(help="Where the copy goes; must not exist.")],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Copy a store, whole and consistent, also while its server runs."""
    found = backup_store(path, file)
    _show(found, as_json, f"{file}: {found['kind']} server, up to log entry {found['entry']}")


@app.command("restore", epilog="Example: fclub store restore /backups/shop-monday.db shop.db --replace")
def restore(
    file: Annotated[Path, typer.Argument(help="A backup.")],
    path: Annotated[Path, typer.Argument(help="Where the server keeps its store; it must not run.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the store that is there.")
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Put a backup back. It is marked: what it may have released since is never released again."""
    found = restore_store(file, path, replace)
    text = f"{path}: {found['kind']} server as of log entry {found['entry']}, marked as restored"
    _show(found, as_json, text)


@app.command("check", epilog="Example: fclub store check shop.db")
def check(path: Annotated[Path, ANY_STORE], as_json: Annotated[bool, AS_JSON] = False) -> None:
    """Say whether a store is whole: its file, its log, its books, and that a replay leads to them.

    A running server is left alone: a copy of its store is checked.
    """
    found = check_copy(path)
    text = "\n".join(f"{key}: {value}" for key, value in found.items())
    _show(found, as_json, text)


@app.command("sent", epilog="Example: fclub store sent shop.db")
def sent(path: Annotated[Path, STORE], as_json: Annotated[bool, AS_JSON] = False) -> None:
    """What has left a local server, message by message, in words."""
    messages = read_sent(path)
    if as_json:
        typer.echo(json.dumps([message._asdict() for message in messages]))
        return
    for message in messages:
        made = datetime.fromtimestamp(message.made, UTC).strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"{made}  session {message.session}, message {message.number}: {in_words(message)}")
    if not messages:
        typer.echo("nothing has left this server")


@app.command("export", epilog="Example: fclub store export shop.db --log log.jsonl --items items.csv")
def export(
    path: Annotated[Path, STORE],
    log: Annotated[Path, typer.Option(help="Where the rounds go, one JSON object a line.")],
    items: Annotated[Path, typer.Option(help="Where the features of their items go, as CSV.")],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Write what was shown, how likely that was and what came of it, for `fclub replay`.

    The log is about people, by number instead of name: forgetting a user does not reach these files.
    """
    done = export_log(path, log, items)
    text = (
        f"{log}: {done.rounds} rounds; {items}: {done.items} items; {done.unanswered} without a reward"
    )
    _show(done._asdict(), as_json, text)


@app.command("forget")
def forget(
    path: Annotated[Path, STORE],
    user: Annotated[str, typer.Argument(help="The user's name, as the application knows it.")],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Remove all that is stored of a user; the server must not run (a running one is asked by HTTP)."""
    gone, ledger, erased = forget_user(path, user)
    promise, under = None, "exactly"
    if ledger is not None:
        (epsilon, delta), level = ledger.claimed, ledger.level.name
        promise = {"epsilon": epsilon, "delta": delta, "unit": ledger.unit, "level": level}
        under = f"under (ε={epsilon:g}, δ={delta:g}), level {level}"
    if as_json:
        told = {"observations": gone.observations, "released": gone.released, "promise": promise}
        typer.echo(json.dumps(told | {"erased": erased}))
        return
    typer.echo(
        f"forgotten, with {gone.observations} observations; at most {gone.released} of them are in "
        f"sums that have left {under} and cannot be taken back"
    )
    if not erased:
        typer.echo("somebody reads the store: old bytes stay in its -wal file until its server starts")
