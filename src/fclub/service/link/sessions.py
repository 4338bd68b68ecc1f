"""Who is behind: one function of the records of both sides, which both of them ask."""

from __future__ import annotations

import os
from typing import NamedTuple

from fclub.protocol.interfaces.exchange import Beginning
from fclub.service.link.channel import Offer, Record
from fclub.service.store.backup import INCARNATION_BYTES

SESSION_BYTES = 16


class Verdict(NamedTuple):
    """What the two records say; agreed if nothing applies."""

    refused: bool = False
    local_new: bool = False
    local_old: bool = False
    global_lost: bool = False

    @property
    def agreed(self) -> bool:
        return not any(self)


def judge(local: Record, hub: Record) -> Verdict:
    """The first row that applies of the table in docs/specification/sessions.md.

    A store that has never had a session cannot tell whether the global server has lost some, so then
    only the mark of the global store counts.
    """
    if hub.superseded or local.rules != hub.rules:
        return Verdict(refused=True)
    if local.ordinal == 0:
        return Verdict(local_new=True, global_lost=hub.marked)
    return Verdict(local_old=_local_is_old(local, hub), global_lost=_global_is_lost(local, hub))


def _local_is_old(local: Record, hub: Record) -> bool:
    if local.marked or local.ordinal < hub.ordinal:
        return True
    if local.ordinal > hub.ordinal:
        return False
    if local.session != hub.session:
        return True
    forgot = local.sent < hub.received or local.received < hub.confirmed
    return forgot or _other_chain(local, hub)


def _global_is_lost(local: Record, hub: Record) -> bool:
    if hub.marked or hub.ordinal < local.ordinal:
        return True
    if hub.session != local.session:
        return False
    forgot = hub.received < local.confirmed or hub.sent < local.received
    return forgot or _other_chain(hub, local)


def _other_chain(sender: Record, receiver: Record) -> bool:
    """Whether the receiver has heard other bytes than the sender knows of up to that number."""
    place = receiver.received - sender.confirmed
    return 0 <= place < len(sender.chains) and sender.chains[place] != receiver.heard


def offer_for(local: Record, hub: Record, verdict: Verdict) -> Offer:
    """A session above both; a store that is new or old takes a new incarnation."""
    fresh = verdict.local_new or verdict.local_old
    return Offer(
        ordinal=max(local.ordinal, hub.ordinal) + 1,
        session=os.urandom(SESSION_BYTES),
        incarnation=os.urandom(INCARNATION_BYTES) if fresh else local.incarnation,
        local_new=verdict.local_new,
        local_old=verdict.local_old,
        global_lost=verdict.global_lost,
        used=max(local.used, hub.used),
    )


def beginning_of(offer: Offer) -> Beginning:
    """What the algorithm has to know; where nothing was heard before, a new store is no loss."""
    lost = offer.local_new and offer.ordinal > 1
    return Beginning(lost, offer.local_old, offer.global_lost, offer.used)


def reason_for(offer: Offer) -> str:
    """What an operator should read about the beginning of a session."""
    reasons = []
    if offer.local_old:
        reasons.append(
            "this store is older than what the global server has heard: "
            "what it may have released is not released again"
        )
    if offer.global_lost:
        reasons.append("the global server is new or older than this store: everything was sent again")
    if offer.local_new and offer.ordinal > 1:
        reasons.append("this store is new: what an earlier store of this name kept to itself is lost")
    return "; ".join(reasons) or "the first session"
