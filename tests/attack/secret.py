"""Secure sums broken in ways that leave every sum right, and one that does not: found by the audit."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.attack.sabotage import SECURE, Sabotage, slots_used_again_after_a_rollback
from tests.cohorts.sabotage import wrap

from fclub.attack.pairs import Pair
from fclub.cohorts import masks, member
from fclub.cohorts.member import Member
from fclub.cohorts.messages import Join, Step
from fclub.privacy.noise import NoNoise
from fclub.protocol.exchanges.slots import SlotsLocal
from fclub.service.nodes.cohorts import MemberSide

ALONE = Pair("cdp-fclub-plus", "user", "interactive", secure=True)


def no_masks(patch: pytest.MonkeyPatch) -> None:
    """A test mode that somebody has left on: sums are right, and the global server sees everything."""
    patch.setattr(member, "add_masks", lambda values, *told: values.view(np.uint64).copy())


def masks_of_40_bits(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, masks, "mask", lambda real, *told: real(*told) & np.uint64(2**40 - 1))


def masks_that_repeat(patch: pytest.MonkeyPatch) -> None:
    """One block of the stream, again and again: fast, and the sum is right."""
    wrap(patch, masks, "mask", lambda real, key, n: np.resize(real(key, 8), n))


def masks_by_identity(patch: pytest.MonkeyPatch) -> None:
    """A mask for two servers for ever: two vectors tell their difference."""
    wrap(
        patch,
        masks,
        "mask_key",
        lambda real, secret, roster, one, other: real(
            bytes(32), bytes(32), one._replace(key=bytes(32)), other._replace(key=bytes(32))
        ),
    )


def no_noise_without_users(patch: pytest.MonkeyPatch) -> None:
    def quiet(real: Any, self: Member, roster: Any) -> Any:
        prepared, source = self._prepared, self._noise
        if prepared is not None and not prepared.vector.any():
            self._noise = NoNoise()
        try:
            return real(self, roster)
        finally:
            self._noise = source

    wrap(patch, Member, "_roster", quiet)


def share_of_everybody(patch: pytest.MonkeyPatch) -> None:
    """Nobody colludes, somebody thinks: each adds 1/√m."""
    wrap(
        patch,
        member,
        "share_of",
        lambda real, *told: real(*told)._replace(deviation=int(real(*told).deviation * np.sqrt(2 / 3))),
    )


def share_drawn_once(patch: pytest.MonkeyPatch) -> None:
    """A member keeps its share for the next slots."""
    kept: dict[int, Any] = {}

    def once(real: Any, source: Any, entries: int, share: Any) -> Any:
        if isinstance(source, NoNoise):
            return real(source, entries, share)
        return kept.setdefault(share.deviation, real(source, entries, share))

    wrap(patch, member, "draw_share", once)


def not_joining_without_news(patch: pytest.MonkeyPatch) -> None:
    def lazy(real: Any, self: Member, call: Any) -> Step:
        prepared = self._prepared
        news = self._identity.name != "s0" or (prepared is not None and prepared.vector.any())
        return real(self, call) if news else Step()

    wrap(patch, Member, "_call", lazy)


def a_join_that_waits_for_users(patch: pytest.MonkeyPatch) -> None:
    """A Join leaves two seconds later for each user with data."""

    def delayed(real: Any, self: Member, call: Any) -> Step:
        (out,) = real(self, call).messages
        active = 2 * int(self._prepared.vector[-1]) // 10**5 if self._prepared else 0
        return Step(None, (out._replace(due=out.due + active),))

    wrap(patch, Member, "_call", delayed)


def users_in_a_masked_length(patch: pytest.MonkeyPatch) -> None:
    """A vector as long as there are users with data, for a hub that can read it."""

    def longer(real: Any, self: MemberSide, step: Step) -> None:
        users = int(np.count_nonzero(self._exchange().learner.counts))
        outs = tuple(
            out._replace(message=msgspec.structs.replace(out.message, name="s0" + "x" * users))
            if isinstance(out.message, Join)
            else out
            for out in step.messages
        )
        real(self, step._replace(messages=outs))

    wrap(patch, MemberSide, "done", longer)


def uncharged_cohorts(patch: pytest.MonkeyPatch) -> None:
    """The member has its own books, and nobody tells the ledger."""

    def sent(self: SlotsLocal, slot: int) -> None:
        self.following = max(self.following, slot + 1)
        self.open = self.prepared = None

    patch.setattr(SlotsLocal, "sent", sent)


def sums_of_live_data(patch: pytest.MonkeyPatch) -> None:
    """What is added is taken again when the roster comes, from all users' means."""
    take = MemberSide._take_over

    def fresh(self: MemberSide) -> None:
        exchange = self._exchange()
        if exchange.prepared is not None:
            liked = int(1000 * exchange.learner.users.moment[:, -1].sum())
            exchange.prepared = exchange.prepared._replace(sums=exchange.prepared.sums + liked**2)
        take(self)

    patch.setattr(MemberSide, "_take_over", fresh)


def waits_by_likes(patch: pytest.MonkeyPatch) -> None:
    """A Call waits a moment where many are content."""
    early = MemberSide._too_early

    def later(self: MemberSide, message: Any) -> bool:
        moments = self._exchange().learner.users.moment
        return early(self, message) or (
            type(message).__name__ == "Roster" and moments[:, -1].sum() > 1.0
        )

    patch.setattr(MemberSide, "_too_early", later)


BY_TWINS: list[tuple[Sabotage, Pair]] = [
    (no_masks, SECURE),
    (masks_of_40_bits, SECURE),
    (masks_that_repeat, SECURE),
    (masks_by_identity, SECURE),
    (not_joining_without_news, SECURE),
    (a_join_that_waits_for_users, ALONE),
    (users_in_a_masked_length, SECURE),
    (uncharged_cohorts, SECURE),
    (sums_of_live_data, SECURE),
    (waits_by_likes, SECURE),
]
"""To be found by comparing two runs without noise."""

BY_WITNESS: list[tuple[Sabotage, Pair]] = [
    (no_noise_without_users, SECURE),
    (share_of_everybody, SECURE),
    (share_drawn_once, ALONE),
]
"""To be found in a single run."""


def window_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A restored store takes part again: its books do not have what it sent."""
    patch.setattr(Member, "_check_window", lambda *told: None)

    def begin(self: Any) -> Step:
        self.began = self.now()
        return Step(self._store().change)

    patch.setattr(Member, "begin", begin)
    slots_used_again_after_a_rollback(patch)


def charged_when_summed(patch: pytest.MonkeyPatch) -> None:
    """Nobody pays for a slot that was lost."""
    stored = MemberSide._stored

    def later(self: MemberSide, record: Any) -> None:
        if not record.outbox:
            stored(self, record)

    patch.setattr(MemberSide, "_stored", later)


BY_LIES: list[tuple[Sabotage, Pair]] = [
    (window_forgotten, SECURE),
    (charged_when_summed, SECURE),
]
"""To be found where the global server lies."""
