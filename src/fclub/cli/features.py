"""`fclub features`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fclub.environments.data.features import item_features, read_titles

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: fclub features ratings.csv --dim 10 --out items.csv"


@app.command("features", epilog=EXAMPLE)
def features(
    ratings: Annotated[str, typer.Argument(help="A file of user, item, rating; or a known data set.")],
    dim: Annotated[int, typer.Option(min=2, help="Number of features, the constant included.")],
    out: Annotated[Path, typer.Option(help="CSV to write: id, features.")],
    size: Annotated[int | None, typer.Option(min=2, help="Only the most rated items.")] = None,
    titles: Annotated[Path | None, typer.Option(help="CSV (item, title): titles become ids.")] = None,
    log: Annotated[Path | None, typer.Option(help="CSV of likes to write, for fclub import.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Least rating that is a like.")] = None,
    quality: Annotated[
        bool, typer.Option(help="The last but one feature is how well the item is liked.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make the features of a catalogue's items from ratings, and say how well they predict."""
    made = item_features(ratings, dim, size, threshold, quality=quality)
    named = None if titles is None else read_titles(titles)
    made.write(out, named)
    if log is not None:
        made.write_log(log, named)
    check = made.check
    if as_json:
        told = {"items": len(made.ids), "constant": made.constant, "check": asdict(check)}
        typer.echo(json.dumps(told))
        return
    typer.echo(
        f"{out}: {len(made.ids)} items with {dim} features, the last of them {made.constant!r}.\n"
        f"Of two held-out ratings of a user the features put the liked one first in "
        f"{100 * check.features:.0f} % of cases ({check.users} users); popularity does in "
        f"{100 * check.popularity:.0f} %, chance in 50 %.\n"
        f"Serve it: fclub up --catalogue {out}\n"
        f"or fclub local --dim {dim} --set model.constant={made.constant!r} --catalogue {out}"
    )
