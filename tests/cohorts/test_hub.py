"""The hub: progress, retries, offences, restarts, and members that are killed at any message."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.cohorts.lab import Lab, identity_of, lab_of, list_of, plan_of

from fclub.cohorts.hub import Hub, HubRecord, SlotView, Stage
from fclub.cohorts.masks import AgreementKey, sign_key
from fclub.cohorts.messages import (
    Abort,
    Call,
    Go,
    Join,
    Masked,
    Message,
    Ready,
    Roster,
    Step,
    Summed,
    decode,
    encode,
)
from fclub.errors import (
    CohortRefused,
    Conflict,
    InvalidJoin,
    InvalidMessage,
    InvalidSetting,
    NothingReady,
    OutsideWindow,
    Quarantined,
    SlotUsed,
)


def view(lab: Lab) -> SlotView:
    assert lab.hub.view is not None
    return lab.hub.view


def tick(lab: Lab, seconds: float) -> None:
    lab.now += seconds
    lab.deliver("", lab.hub.tick())


def plain(lab: Lab, *without: str) -> list[int]:
    found = [lab.vectors[n] + lab.noise[n].drawn[-1] for n in lab.members if n not in without]
    return [int(value) for value in np.sum(found, axis=0)]


def test_a_slot_with_everybody() -> None:
    lab = lab_of(5)
    lab.run(0)
    found = view(lab)
    names = tuple(lab.members)
    assert (found.called, found.joined, found.ready, found.missing) == (names, names, names, ())
    assert found.stage == Stage.SUMMED
    assert list(found.times) == ["called", "roster sent", "go", "summed"]
    assert lab.hub.total.tolist() == plain(lab)
    assert lab.hub_store.gone is None
    lab.run(1)
    assert [slot.slot for slot in lab.hub_store.slots] == [0, 1]
    with pytest.raises(SlotUsed):
        lab.hub.call(0)


def test_who_is_absent_is_left_behind_and_too_few_are_told() -> None:
    lab = lab_of(5, colluders=2)
    lab.deaf = lambda sender, to, message: to == "shop-4" or sender == "shop-4"
    lab.run(0)
    assert view(lab).stage == Stage.CALLED
    tick(lab, 13.0)
    assert view(lab).stage == Stage.SUMMED
    assert view(lab).joined == ("shop-0", "shop-1", "shop-2", "shop-3")
    assert lab.hub.total.tolist() == plain(lab, "shop-4")

    lab.deaf = lambda sender, to, message: {to, sender} & {"shop-4", "shop-3"} != set()
    lab.run(1)
    tick(lab, 13.0)
    assert view(lab).stage == Stage.CALLED
    assert view(lab).reason.startswith("3 of 4 needed are present")
    tick(lab, 300.0)
    assert view(lab).stage == Stage.NOT_SUMMED
    assert view(lab).reason.startswith("3 of 4 needed are present")
    assert view(lab).missing == ("shop-3", "shop-4")
    assert all(len(stored.charges) <= 1 for stored in lab.stores.values()), "that was free"


def test_who_joins_and_is_not_ready_is_left_out_of_the_next_attempt() -> None:
    lab = lab_of(5)
    lab.deaf = lambda sender, to, message: sender == "shop-2" and isinstance(message, Ready)
    lab.run(0)
    assert view(lab).stage == Stage.GATHERED
    tick(lab, 1.0)
    assert view(lab).stage == Stage.GATHERED
    tick(lab, 10.0)
    assert view(lab).stage == Stage.SUMMED
    assert view(lab).joined == ("shop-0", "shop-1", "shop-3", "shop-4")
    assert lab.hub.total.tolist() == plain(lab, "shop-2")
    assert [len(lab.noise[name].drawn) for name in lab.members] == [2, 2, 1, 2, 2]
    assert lab.stores["shop-2"].charges == ()
    assert lab.members["shop-2"].state == "idle"
    assert lab.hub_store.left_out == ()


def test_nobody_goes_when_the_window_is_nearly_over() -> None:
    lab = lab_of(4)
    held: list[tuple[str, Message]] = []
    lab.deaf = lambda sender, to, message: isinstance(message, Ready)
    lab.watch = lambda sender, message: held.append((sender, message))
    lab.run(0)
    lab.now = lab.plan.times[0] + 0.75 * lab.plan.window
    with pytest.raises(OutsideWindow):
        Hub(lab.list, lab.plan, HubRecord(), lab.clock, lambda n: b"e" * n).call(0)
    for sender, message in held:
        if isinstance(message, Ready):
            lab.deliver("", lab.hub.receive(sender, message))
    assert view(lab).stage == Stage.NOT_SUMMED
    assert view(lab).reason == "not ready in time: nobody"
    assert lab.frames(Go) == []
    assert all(member.state == "idle" for member in lab.members.values())


def test_ready_and_silent_is_left_out_until_readmitted() -> None:
    lab = lab_of(5)
    lab.deaf = lambda sender, to, message: sender == "shop-1" and isinstance(message, Masked)
    lab.run(0)
    assert view(lab).stage == Stage.GONE
    lab.now = lab.plan.times[1] - 1.0
    lab.deliver("", lab.hub.tick())
    assert view(lab).stage == Stage.GONE
    tick(lab, 1.0)
    assert view(lab).stage == Stage.NOT_SUMMED
    assert view(lab).missing == ("shop-1",)
    assert view(lab).reason.startswith("ready, but sent nothing: shop-1; left out")
    assert lab.hub_store.left_out == ("shop-1",)
    assert lab.hub.total.tolist() == []
    with pytest.raises(Quarantined):
        lab.hub.receive("shop-1", Ready(b""))
    lab.deaf = lambda sender, to, message: False
    lab.run(1)
    assert view(lab).called == ("shop-0", "shop-2", "shop-3", "shop-4")
    assert view(lab).stage == Stage.SUMMED
    readmitted = lab.store("", lab.hub.readmit("shop-1")).change
    assert readmitted.left_out == ()
    assert len(lab.stores["shop-1"].charges) == 1, "what it stored before it was silent stays charged"


def test_after_the_last_slot_members_have_one_more_window() -> None:
    lab = lab_of(4)
    lab.deaf = lambda sender, to, message: sender == "shop-1" and isinstance(message, Masked)
    lab.run(1)
    lab.now = lab.plan.end + lab.plan.window - 1.0
    assert lab.hub.tick() == Step()
    lab.deaf = lambda sender, to, message: False
    lab.resend("shop-1")
    assert view(lab).stage == Stage.SUMMED
    assert lab.hub.tick() == Step()


def test_rubbish_is_found_by_its_range_and_nobody_is_accused() -> None:
    lab = lab_of(4)
    lab.deaf = lambda sender, to, message: sender == "shop-1" and isinstance(message, Masked)
    lab.run(0)
    rho = lab.hub_store.gone.roster if lab.hub_store.gone is not None else b""
    with pytest.raises(InvalidMessage, match="expected 40 bytes, got 8"):
        lab.hub.receive("shop-1", Masked(rho, bytes(8)))
    lab.deliver("", lab.hub.receive("shop-1", Masked(rho, b"\x55" * 40)))
    assert view(lab).stage == Stage.NOT_SUMMED
    assert "nobody can tell who" in view(lab).reason
    assert lab.hub_store.left_out == ()
    assert all(stored.outbox == () for stored in lab.stores.values())


def test_other_bytes_for_the_same_slot_are_a_conflict() -> None:
    lab = lab_of(4)
    lab.deaf = lambda sender, to, message: sender == "shop-1" and isinstance(message, Masked)
    lab.run(0)
    masked = lab.stores["shop-1"].outbox[0].message
    kept = lab.stores["shop-0"].outbox[0].message
    lab.hub.receive("shop-0", kept)
    with pytest.raises(Conflict):
        lab.hub.receive("shop-0", Masked(kept.roster, b"\x55" * 40))
    lab.deliver("", lab.hub.receive("shop-1", masked))
    assert lab.hub.total.tolist() == plain(lab)


def test_bad_joins_are_named_and_do_not_stop_the_others() -> None:
    lab = lab_of(5)
    lab.deaf = lambda sender, to, message: sender == "shop-3" and isinstance(message, Join)
    lab.run(0)
    first = lab.frames(Join)[0]
    assert isinstance(first, Join)
    context = lab.hub._context
    key = AgreementKey(b"3" * 32).public
    evil = identity_of("shop-3").secret
    wrong = [
        first,
        Join(*sign_key(evil, b"c" * 32, "shop-3", key)),
        Join(*sign_key(evil, context, "shop-3", first.key)),
        Join(*sign_key(evil, context, "shop-3", bytes(32))),
    ]
    for join in wrong:
        with pytest.raises(InvalidJoin):
            lab.hub.receive("shop-3", join)
        assert set(view(lab).offences) == {"shop-3"}
    with pytest.raises(CohortRefused):
        lab.hub.receive("stranger", Join(*sign_key(evil, context, "stranger", key)))
    tick(lab, 13.0)
    assert view(lab).stage == Stage.SUMMED
    assert "shop-3" not in view(lab).joined


def test_what_comes_at_the_wrong_time_is_refused() -> None:
    lab = lab_of(4)
    assert lab.hub.tick() == Step()
    assert lab.hub.start_again() == Step()
    with pytest.raises(NothingReady):
        lab.hub.receive("shop-0", Join("shop-0", b"", b""))
    with pytest.raises(NothingReady):
        lab.hub.receive("shop-0", Ready(b""))
    with pytest.raises(InvalidMessage):
        lab.hub.receive("shop-0", Go(b""))
    assert lab.hub.receive("shop-0", Masked(b"old", b"")).messages[0].message == Abort(b"old")
    with pytest.raises(InvalidSetting):
        lab.hub.call(2)
    with pytest.raises(OutsideWindow):
        lab.hub.call(0)
    lab.deaf = lambda sender, to, message: isinstance(message, Join)
    lab.run(0)
    with pytest.raises(CohortRefused, match="the slot before"):
        lab.hub.call(1)
    with pytest.raises(CohortRefused, match="between slots"):
        lab.hub.set_members(list_of(lab.identities, 2))
    with pytest.raises(InvalidSetting, match="plan of"):
        Hub(lab.list, plan_of(federation="other"), HubRecord(), lab.clock, lambda n: b"e" * n)
    lab.members["shop-0"].began = None
    with pytest.raises(InvalidSetting, match="begin"):
        lab.members["shop-0"].receive(Go(b""))
    for data in (b"", b"\x91\xa4none", encode(Go(b"r")) + b"x"):
        with pytest.raises(InvalidMessage):
            decode(data)


def test_a_change_of_the_member_list() -> None:
    """Members with another epoch than the hub are named; when all have it, sums go on."""
    lab = lab_of(5)
    new = list_of(lab.identities[:4], epoch=2)
    for name in ("shop-0", "shop-1", "shop-2", "shop-3"):
        lab.now = 500.0
        lab.store(name, lab.members[name].accept(new))
    lab.run(0)
    assert set(view(lab).offences) == {"shop-0", "shop-1", "shop-2", "shop-3"}
    tick(lab, 350.0)
    assert view(lab).stage == Stage.NOT_SUMMED
    lab.hub.set_members(new)
    elsewhere = msgspec.structs.replace(new, federation="elsewhere", epoch=3)
    for other in (list_of(lab.identities, epoch=1), elsewhere):
        with pytest.raises(InvalidSetting, match="a later member list of"):
            lab.hub.set_members(other)
    lab.run(1)
    assert view(lab).stage == Stage.SUMMED
    assert lab.hub.total.tolist() == plain(lab, "shop-4")


def test_a_rotated_key_counts_when_the_list_has_it() -> None:
    lab = lab_of(4)
    lab.identities[0] = identity_of("shop-0", seed="rotated")
    lab.start("shop-0")
    lab.run(0)
    assert "another key" in lab.members["shop-0"].refusal
    tick(lab, 13.0)
    assert view(lab).stage == Stage.SUMMED
    new = list_of(lab.identities, epoch=2)
    for name, member in lab.members.items():
        lab.store(name, member.accept(new))
    lab.hub.set_members(new)
    lab.run(1)
    assert view(lab).joined == tuple(lab.members)


def test_a_hub_that_dies_after_go_finishes_from_what_members_send_again() -> None:
    lab = lab_of(4)
    lab.deaf = lambda sender, to, message: isinstance(message, Masked)
    lab.run(0)
    lab.deaf = lambda sender, to, message: False
    lab.start_hub()
    assert view(lab).stage == Stage.GONE
    lab.deliver("", lab.hub.start_again())
    assert view(lab).stage == Stage.SUMMED
    assert lab.hub.total.tolist() == plain(lab)
    masked = [message for message in lab.frames(Masked) if isinstance(message, Masked)]
    assert len(masked) == 8
    assert len({message.values for message in masked}) == 4
    late = lab.hub.receive("shop-0", masked[0]).messages
    assert late[0].message == Summed(masked[0].roster)


def test_a_hub_that_dies_before_go_begins_again() -> None:
    lab = lab_of(4)
    lab.deaf = lambda sender, to, message: isinstance(message, Ready)
    lab.run(0)
    lab.deaf = lambda sender, to, message: False
    lab.start_hub()
    lab.deliver("", lab.hub.call(0))
    assert view(lab).stage == Stage.SUMMED
    assert lab.hub.total.tolist() == plain(lab)


class Killed(Exception):
    pass


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(28))
@pytest.mark.parametrize("who", ["shop-1", ""], ids=["member", "hub"])
def test_killed_at_any_message(who: str, at: int, before: bool) -> None:
    """The process dies before or after the at-th message of the slot leaves or arrives."""
    lab = lab_of(4)
    count = 0
    state = "running"

    def deaf(sender: str, to: str, message: Message) -> bool:
        nonlocal count, state
        if state == "dead":
            return who in (sender, to)
        if count == at:
            state = "dead"
            count += 1
            return before or who in (sender, to)
        count += 1
        return False

    lab.deaf = deaf
    lab.run(0)
    lab.now += 5.0
    state = "running"
    count = at + 1
    if who:
        lab.start(who)
    else:
        lab.start_hub()
    lab.deliver("", lab.hub.start_again())
    for name in lab.members:
        lab.resend(name)
    while lab.now < lab.plan.times[1]:
        tick(lab, 7.0)
        if lab.hub.view is None or (view(lab).stage == Stage.CALLED and lab.hub._call is None):
            lab.deliver("", lab.hub.call(0))
    masked = {
        sender: {data for s, _, data in lab.sent if s == sender and data.startswith(b"\x93\xa6masked")}
        for sender in lab.members
    }
    assert all(len(values) <= 1 for values in masked.values()), "one vector a member"
    for name, values in masked.items():
        assert not values or [charge.slot for charge in lab.stores[name].charges] == [0]
    assert view(lab).stage in (Stage.SUMMED, Stage.NOT_SUMMED)
    lost = [name for name in lab.members if name in lab.hub_store.left_out]
    assert lost in ([], [who]), "a slot is lost only by who died between Ready and Masked"
    if view(lab).stage == Stage.NOT_SUMMED and view(lab).slot == 0:
        assert lost == [who] or not any(masked.values())
    if view(lab).stage == Stage.SUMMED:
        assert lab.hub.total.tolist() == plain(lab, *(set(lab.members) - set(view(lab).joined)))
    lab.run(1)
    if view(lab).stage == Stage.CALLED:
        tick(lab, 13.0)
    assert view(lab).stage == Stage.SUMMED


def test_frames_are_read_as_they_were_written() -> None:
    lab = lab_of(3)
    lab.run(0)
    kinds = {type(decode(data)) for _, _, data in lab.sent}
    assert kinds == {Call, Join, Roster, Ready, Go, Masked, Summed}
    assert all(encode(decode(data)) == data for _, _, data in lab.sent)


def test_ready_twice_is_refused_once_everybody_was_told_to_go() -> None:
    lab = lab_of(4)
    lab.deaf = lambda sender, to, message: isinstance(message, Masked)
    lab.run(0)
    gone, stage = lab.hub.record.gone, view(lab).stage
    assert gone is not None
    with pytest.raises(NothingReady):
        lab.hub.receive("shop-1", Ready(gone.roster))
    assert view(lab).stage == stage == Stage.GONE
