"""`fclub data`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fclub.cli.screen import screen
from fclub.environments.data.cache import DATASETS, check, dataset, install, installed

app = typer.Typer(add_completion=False)

VERIFIED = {
    "checksum": "its publisher's checksum",
    "count": "its numbers of ratings and users, as its publisher states them",
    "structure": "structure only: no checksum or size is known, so it may be another file",
}


class _Bar:
    """A download's progress on standard error, in the form that pooch drives."""

    def __init__(self, name: str) -> None:
        columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(name, total=None)

    @property
    def total(self) -> Any:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size)
        self._progress.start()

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.reset(self._task, start=True)

    def close(self) -> None:
        self._progress.stop()


def _list(as_json: bool) -> None:
    here = {name: installed(name) for name in DATASETS}
    if as_json:
        listing = {
            name: {"url": kind.url, "licence": kind.licence, "installed": here[name] is not None}
            for name, kind in DATASETS.items()
        }
        typer.echo(json.dumps(listing))
        return
    table = Table()
    for title in ("data set", "here", "licence", "source"):
        table.add_column(title, no_wrap=title == "data set", overflow="fold")
    for name, kind in DATASETS.items():
        table.add_row(name, "yes" if here[name] else "no", kind.licence, kind.url)
    screen().print(table)


@app.command("data", epilog="Example: fclub data movielens-1m --from ml-1m.zip --check")
def data(
    name: str = typer.Argument("", help=f"One of {', '.join(DATASETS)}; none: list them."),
    source: str | None = typer.Option(None, "--from", help="A file, folder or archive you have."),
    verify: bool = typer.Option(False, "--check", help="Digest of the 1000×1000 matrix made from it."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Download and verify a data set, or take it from a file; what is in the cache is used again."""
    if not name:
        _list(as_json)
        return
    licence = dataset(name).licence
    known = installed(name) if source is None else None
    with Console(stderr=True).status(f"reading {name}"):
        manifest = known or install(name, source, _Bar(name) if source is None else None)
        digests = check(name) if verify else {}
    if manifest.verified == "structure" and source is not None:
        typer.echo(f"warning: nothing says that this is {name}; to undo, rm {manifest.path}", err=True)
    result = asdict(manifest) | {"licence": licence} | digests
    if as_json:
        typer.echo(json.dumps(result))
        return
    for key, value in (result | {"verified": VERIFIED[manifest.verified]}).items():
        typer.echo(f"{key}: {value}")
