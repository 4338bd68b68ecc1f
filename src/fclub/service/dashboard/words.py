"""Sentences of the pages: what is promised, when a server sends next, and what is not well."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import INTERACTIVE, USER
from fclub.protocol.interfaces import overview
from fclub.protocol.interfaces.overview import Outlook
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.handshake import AGREED
from fclub.service.nodes.local_node import LocalNode

COVERS = {
    "cdp": "the values that are released",
    "transcript": "all messages",
    "interactive": "all messages, and the choices that react to them",
}
"""What each level protects, in few words."""

NO_PLAN = (
    "Nothing leaves: this server has no plan. It serves its users from their own data; `fclub plan` "
    "writes a plan for all members."
)


def next_sending(outlook: Outlook) -> str:
    """When a local server sends next, or why it does not."""
    now, at = outlook.now, outlook.at
    match outlook.what:
        case overview.VISITS_PER_USER | overview.TIME if at is None:
            return f"All {outlook.releases} slots of the plan are over: nothing more leaves."
        case overview.VISITS_PER_USER:
            return (
                f"Slot {outlook.used + 1} of {outlook.releases} of the plan is due once users have "
                f"made {at:.1f} visits on average; now it is {now:.1f}."
            )
        case overview.TIME:
            when = f"{datetime.fromtimestamp(at or 0.0, UTC):%Y-%m-%d %H:%M}"
            return f"Slot {outlook.used + 1} of {outlook.releases} of the plan is on {when} UTC."
        case overview.OBSERVATIONS if at is not None:
            return f"The next exchange is at {at:,.0f} observations; now there are {now:,.0f}."
        case overview.CHANGE:
            return "A cluster is sent once new data change its estimate enough, and at every phase."
    return NO_PLAN


def promise(ledger: Ledger) -> dict[str, Any]:
    """What is claimed: numbers, and a sentence without them."""
    subject = "all data of one user" if ledger.unit == USER else "one observation of a user"
    period = ", for ever" if ledger.unit == USER else ""
    return {
        "claimed": list(ledger.claimed),
        "unit": ledger.unit,
        "level": ledger.level.name,
        "covers": f"It is about {subject} and covers {COVERS[ledger.level.name]}{period}.",
    }


def effects_told(node: LocalNode) -> str:
    """Whether the server learns what single items are worth beyond their features."""
    ledger = node.books.ledger
    if node.items.on:
        return "What each is worth beyond its features is learned from rewards, and stays here."
    if ledger is not None and ledger.level is INTERACTIVE:
        return (
            "At level interactive nothing is learned of single items: what one user likes must not "
            "show in what others are offered."
        )
    return "This policy learns nothing of single items beyond their features."


Note = dict[str, Any]


def _note(text: str, good: bool = False) -> Note:
    return {"good": good, "text": text}


USED_UP = (
    "the privacy budget was used up before the plan ended: nothing more is released, users are served "
    "from their own data and what was learned; GET /v1/privacy says what was spent"
)


def local_troubles(node: LocalNode, unreached: str | None = None) -> list[str]:
    """What keeps a local server from taking part, each with what can be done."""
    standing, found = node.sessions.handshake.shown, []
    if unreached is not None:
        found.append(unreached)
    elif standing.state != AGREED:
        found.append(standing.reason or "the global server has not answered yet")
    early = (
        node.books.exhausted
        and node.server.status().outlook.used != node.server.status().outlook.releases
    )
    told = [node.server.status().outlook.alarm, USED_UP if early else None, node.store.disk.nearly_full]
    return [text for text in (*found, *told) if text]


def global_troubles(node: GlobalNode, unreached: str | None = None) -> list[str]:
    """The same of the global server and all local ones."""
    named = [f"{name}: {text}" for name, text in node.members.troubles().items()]
    return [text for text in (unreached, node.store.disk.nearly_full, *named) if text]


def local_notes(node: LocalNode, failed: dict[str, int]) -> list[Note]:
    """What is well with a local server, and what is not."""
    notes = [_note(_sentence(text)) for text in local_troubles(node)]
    if node.sessions.handshake.shown.state == AGREED:
        agreed = _note("It agrees with the global server on what was sent.", good=True)
        notes.insert(0, agreed)
    broken = sum(number for status, number in failed.items() if status >= "500")
    if broken:
        notes.append(_note(f"{broken} requests failed inside the server: see its log."))
    return notes


def global_notes(node: GlobalNode) -> list[Note]:
    """What is well with the federation, and what is not."""
    full = node.store.disk.nearly_full
    notes = [_note(_sentence(full))] if full else []
    notes += [_note(f"{name}: {text}.") for name, text in node.members.troubles().items()]
    named = node.members.troubles()
    awaited = [name for name, peer in node.peers.items() if peer.awaited and name not in named]
    silent = [name for name in awaited if not node.peers[name].seen]
    if silent:
        notes.append(_note(f"Nothing was heard since the start from {', '.join(silent)}."))
    left = [name for name, peer in node.peers.items() if peer.retired]
    if left:
        notes.append(_note(f"{', '.join(left)} left for good; what was released stays.", good=True))
    if named or silent:
        return notes
    heard = f"All {len(awaited)} local servers are heard and trusted."
    return [*notes, _note(heard if awaited else "No organisation has joined yet.", good=bool(awaited))]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
