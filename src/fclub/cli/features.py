"""`fclub features`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fclub.environments.data.features import (
    ItemFeatures,
    item_features,
    private_features,
    read_titles,
)
from fclub.errors import InvalidSetting
from fclub.privacy.ledger import write_ledger
from fclub.privacy.noise import DiscreteNoise

app = typer.Typer(add_completion=False)

EXAMPLE = """Examples: fclub features ratings.csv --dim 10 --out items.csv --features-are-public ·
fclub features ratings.csv --dim 10 --out items.csv --epsilon 4 --threshold 4"""

ASSUMED = (
    "These features are made from ratings without noise. The guarantee of a federation takes features "
    "for public: say --features-are-public if whoever rated is not among its users or the ratings are "
    "public, or give a budget with --epsilon."
)


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
    epsilon: Annotated[
        float | None, typer.Option(help="Noise the sums over users for this ε of each user.")
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of that budget.")] = 1e-5,
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger of that budget to write; OUT.ledger.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--features-are-public", help="The ratings may be known to anybody.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make the features of a catalogue's items from ratings, and say how well they predict."""
    if epsilon is None:
        made = item_features(ratings, dim, size, threshold, quality=quality)
    else:
        paid = ledger or out.with_name(f"{out.name}.ledger")
        made = _under_budget(ratings, dim, size, threshold, epsilon, delta, paid, quality)
    named = None if titles is None else read_titles(titles)
    made.write(out, named)
    if log is not None:
        made.write_log(log, named)
    check = made.check
    if as_json:
        told = {"items": len(made.ids), "constant": made.constant, "check": asdict(check)}
        cost = None if made.ledger is None else made.ledger.summary()
        typer.echo(json.dumps(told | {"public": public, "privacy": cost}))
        return
    if made.ledger is not None:
        typer.echo(f"Each user's ratings cost ε = {epsilon:g} at δ = {delta:g}; the ledger is {paid}.")
    elif not public:
        typer.echo(ASSUMED, err=True)
    typer.echo(
        f"{out}: {len(made.ids)} items with {dim} features, the last of them {made.constant!r}.\n"
        f"Of two held-out ratings of a user the features put the liked one first in "
        f"{100 * check.features:.0f} % of cases ({check.users} users); popularity does in "
        f"{100 * check.popularity:.0f} %, chance in 50 %.\n"
        f"Serve it: fclub up --catalogue {out}\n"
        f"or fclub local --dim {dim} --set model.constant={made.constant!r} --catalogue {out}"
    )


def _under_budget(
    ratings: str,
    dim: int,
    size: int | None,
    threshold: float | None,
    epsilon: float,
    delta: float,
    ledger: Path,
    quality: bool,
) -> ItemFeatures:
    """The ledger is written first: what is not on disk then has been paid for all the same."""
    if threshold is None:
        raise InvalidSetting("a budget needs --threshold: the mean of all ratings is data")
    if ledger.exists():
        raise InvalidSetting(
            f"{ledger} exists: features were made from these ratings before, and others cost as much "
            "again; add both up, or use those"
        )
    budget = epsilon, delta, DiscreteNoise()
    made = private_features(ratings, dim, size, threshold, *budget, quality=quality)
    assert made.ledger is not None
    write_ledger(made.ledger, ledger)
    return made
