"""What has left a local server, message by message, as its store has it; the server may be running."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from fclub.errors import InvalidFile
from fclub.service.store.backup import describe, read_only


class Sent(NamedTuple):
    """One message: its number among all, when it was made, in which session, and what was in it.

    `charged` names the streams of the ledger that were entered for it; None where nothing is claimed.
    Of `confirmed` the store knows only in the present session.
    """

    number: int
    made: float
    session: int
    kind: str
    clusters: int
    observations: int
    charged: list[str] | None
    confirmed: bool | None


def read_sent(path: Path) -> list[Sent]:
    """All messages of a local server, in their order."""
    if describe(path)["kind"] != "local":
        raise InvalidFile(f"{path} is not the store of a local server: only those release anything")
    try:
        with closing(read_only(path)) as store:
            claimed = store.execute("SELECT 1 FROM meta WHERE key = 'ledger'").fetchone() is not None
            (waiting,) = store.execute("SELECT count(*) FROM outbox").fetchone()
            begun = store.execute("SELECT value FROM meta WHERE key = 'begun'").fetchone()
            entries = store.execute("SELECT frame, event FROM ledger ORDER BY entry").fetchall()
            columns = "sequence, made, session, kind, clusters, observations"
            rows = store.execute(f"SELECT {columns} FROM sent ORDER BY sequence").fetchall()
    except sqlite3.Error as error:
        raise InvalidFile(f"{path} does not hold a whole state: {error}") from None
    now = json.loads(begun[0])["session"] if begun else 0
    charged: dict[int, list[str]] = {}
    for frame, event in entries:
        charged.setdefault(frame, []).append(json.loads(event)["stream"])
    return [
        Sent(
            number=number,
            made=made,
            session=session,
            kind=kind,
            clusters=clusters,
            observations=observations,
            charged=sorted(set(charged.get(number, []))) if claimed else None,
            confirmed=place < len(rows) - waiting if session == now else None,
        )
        for place, (number, made, session, kind, clusters, observations) in enumerate(rows)
    ]


def in_words(sent: Sent) -> str:
    """A line for people."""
    holds = (
        f"{sent.observations} observations of {sent.clusters} clusters" if sent.clusters else "no data"
    )
    cost = "exactly, without noise"
    if sent.charged is not None:
        cost = f"noise charged to {', '.join(sent.charged)}" if sent.charged else "released before"
    heard = {True: "", False: "; not confirmed yet", None: "; of an earlier session"}[sent.confirmed]
    told = f"; {cost}" if sent.clusters else ""
    return f"{sent.kind} with {holds}{told}{heard}"
