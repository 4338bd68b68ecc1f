"""What must hold of members and hub, as functions that a sabotage makes fail."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np
from tests.cohorts import slow
from tests.cohorts.lab import Lab, identity_of, lab_of, list_of, outgoing, plan_of

import fclub.cohorts
from fclub.cohorts.hub import Stage
from fclub.cohorts.masks import AgreementKey, SignedKey, mask_key, sign_key
from fclub.cohorts.member import Member, MemberRecord, State
from fclub.cohorts.messages import Abort, Call, Go, Join, Masked, Message, Ready, Roster, Summed, encode
from fclub.cohorts.plan import Charge, guarantees
from fclub.errors import (
    CohortRefused,
    FclubError,
    InvalidJoin,
    InvalidRoster,
    InvalidSetting,
    NothingReady,
    OtherTerms,
    OutOfRange,
    OutsideWindow,
    SlotUsed,
    TooFewMembers,
    UnknownMember,
)

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def refuses(kind: type[FclubError], call: Callable[[], object]) -> None:
    """Exactly this refusal."""
    found: object = "nothing"
    try:
        call()
    except FclubError as error:
        found = type(error)
    assert found is kind, f"expected {kind.__name__} to be raised, got {found}"


def context_of(lab: Lab, call: Call) -> bytes:
    """Written out a second time, from the specification."""
    text = slow.with_length
    members, plan = lab.list, lab.plan
    parts = (
        text(b"fclub-context-1") + text(b"lab") + text(members.hash) + members.epoch.to_bytes(8, "big")
    )
    parts += text(plan.hash) + call.period.to_bytes(8, "big") + call.slot.to_bytes(8, "big")
    parts += text(call.nonce) + call.version.to_bytes(8, "big") + text(sha256(b"").digest())
    return sha256(parts + plan.colluders.to_bytes(8, "big") + plan.cap.to_bytes(8, "big")).digest()


def gathered(lab: Lab, slot: int = 0) -> tuple[Call, dict[str, SignedKey]]:
    """A Call that all members have joined, by a hub that is played here."""
    lab.now = lab.plan.times[slot] + 10.0
    lab.prepare(slot)
    call = Call(1, slot, 0, b"n" * 16)
    joins = {}
    for name, member in lab.members.items():
        message = outgoing(lab.store(name, member.receive(call))).message
        assert isinstance(message, Join)
        joins[name] = message.signed
    return call, joins


def roster_of(joins: dict[str, SignedKey], *without: str) -> Roster:
    return Roster(tuple(joins[name] for name in sorted(joins) if name not in without))


def ready(lab: Lab, roster: Roster, *names: str) -> bytes:
    """These members get the roster; the hash under which they are ready."""
    found = set()
    for name in names or tuple(lab.members):
        message = outgoing(lab.store(name, lab.members[name].receive(roster))).message
        assert isinstance(message, Ready)
        found.add(message.roster)
    (rho,) = found
    return rho


def sends(lab: Lab, name: str, message: Message) -> Masked:
    found = outgoing(lab.store(name, lab.members[name].receive(message))).message
    assert isinstance(found, Masked)
    return found


# Cryptography


@check
def masked_values_are_those_of_the_slow_version() -> None:
    lab = lab_of(4)
    call, joins = gathered(lab)
    roster = roster_of(joins)
    rho = ready(lab, roster)
    plain = roster.joins
    assert rho == slow.rho(context_of(lab, call), plain)
    for name in lab.members:
        noised = (lab.vectors[name] + lab.noise[name].drawn[-1]).tolist()
        expected = slow.masked(noised, name, lab.entropy[name].given[-1], context_of(lab, call), plain)
        assert np.frombuffer(sends(lab, name, Go(rho)).values, "<u8").tolist() == expected


@check
def every_pair_has_a_mask_of_its_own() -> None:
    key, other = b"k" * 32, b"l" * 32
    ab, aba, ba = (SignedKey(n, k, b"") for n, k in (("ab", key), ("aba", other), ("ba", key)))
    assert mask_key(b"s" * 32, b"r" * 32, ab, aba) != mask_key(b"s" * 32, b"r" * 32, aba, ba)


@check
def keys_come_from_entropy() -> None:
    lab = lab_of(3)
    _, joins = gathered(lab)
    for name, join in joins.items():
        assert lab.entropy[name].given, "the key is not from the entropy that was given"
        secret = lab.entropy[name].given[-1]
        assert join.key == slow.x25519(secret, (9).to_bytes(32, "little"))


@check
def large_sums_are_exact() -> None:
    lab = lab_of(4, users=2**36)
    for number, name in enumerate(lab.vectors):
        lab.vectors[name] = np.array(
            [2**54 + 1, -(2**54) - 1, 2**55 - 1, number, 2**56], dtype=np.int64
        )
    lab.run(0)
    columns = [[int(v) for v in lab.vectors[n] + lab.noise[n].drawn[0]] for n in lab.members]
    assert lab.hub.total.tolist() == [sum(column) for column in zip(*columns, strict=True)]


@check
def a_substituted_key_is_refused() -> None:
    lab = lab_of(4)
    _, joins = gathered(lab)
    forged = joins | {"shop-1": joins["shop-1"]._replace(key=AgreementKey(b"x" * 32).public)}
    refuses(InvalidJoin, lambda: lab.members["shop-0"].receive(roster_of(forged)))
    signed = sign_key(identity_of("evil").secret, b"c" * 32, "shop-1", forged["shop-1"].key)
    refuses(InvalidJoin, lambda: lab.members["shop-0"].receive(roster_of(joins | {"shop-1": signed})))


@check
def a_join_of_another_context_is_refused() -> None:
    """The hub replays the Join of an earlier Call, or of a member with another model."""
    lab = lab_of(4)
    _, before = gathered(lab)
    call = Call(1, 0, 0, b"m" * 16)
    message = outgoing(lab.members["shop-0"].receive(call)).message
    assert isinstance(message, Join)
    refuses(
        InvalidJoin,
        lambda: lab.members["shop-0"].receive(roster_of(before | {"shop-0": message.signed})),
    )


@check
def equal_odd_and_small_keys_are_refused() -> None:
    lab = lab_of(4)
    call, joins = gathered(lab)
    context, secret = context_of(lab, call), identity_of("shop-2").secret
    key = joins["shop-1"].key
    for copied in (key, key[:31] + bytes([key[31] | 128]), key[:31], bytes(32)):
        forged = roster_of(joins | {"shop-2": sign_key(secret, context, "shop-2", copied)})
        refuses(InvalidJoin, partial(lab.members["shop-0"].receive, forged))
    assert lab.members["shop-0"].state == State.IDLE


@check
def rosters_have_known_names_in_order_and_the_own_join() -> None:
    lab = lab_of(4)
    call, joins = gathered(lab)
    zero = lab.members["shop-0"]
    foreign = sign_key(identity_of("zz").secret, context_of(lab, call), "zz", b"z" * 31 + b"\0")
    refuses(UnknownMember, lambda: zero.receive(roster_of(joins | {"zz": foreign})))
    ordered = roster_of(joins).joins
    refuses(InvalidRoster, lambda: zero.receive(Roster(ordered[::-1])))
    refuses(InvalidRoster, lambda: zero.receive(Roster((*ordered, ordered[-1]))))
    refuses(InvalidRoster, lambda: zero.receive(roster_of(joins, "shop-0")))
    own = sign_key(identity_of("shop-0").secret, context_of(lab, call), "shop-0", b"o" * 31 + b"\0")
    refuses(InvalidRoster, lambda: zero.receive(roster_of(joins | {"shop-0": own})))
    assert zero.state == State.JOINED


# Noise


def charge_of(lab: Lab, name: str) -> Charge:
    return lab.stores[name].charges[-1]


@check
def organisations_collude_with_all_their_members() -> None:
    lab = lab_of(6, organisations=["big"] * 4 + ["b", "c"])
    lab.run(0)
    for name in lab.members:
        assert charge_of(lab, name).shares == 2
        assert lab.noise[name].deviations == [charge_of(lab, name).deviation]
        assert 2 * charge_of(lab, name).deviation ** 2 >= lab.plan.deviations[0] ** 2


@check
def shares_follow_from_the_roster_that_came() -> None:
    lab = lab_of(8)
    _, joins = gathered(lab)
    rho = ready(lab, roster_of(joins, "shop-4", "shop-5", "shop-6", "shop-7"), "shop-0", "shop-1")
    sends(lab, "shop-0", Go(rho))
    assert charge_of(lab, "shop-0").members == 4
    assert charge_of(lab, "shop-0").shares == 3
    assert 3 * lab.noise["shop-0"].deviations[0] ** 2 >= lab.plan.deviations[0] ** 2


@check
def colluders_are_counted_in_the_federation() -> None:
    lab = lab_of(10, colluders=3)
    _, joins = gathered(lab)
    few = roster_of(joins, *(f"shop-{i}" for i in range(4, 10)))
    refuses(TooFewMembers, lambda: lab.members["shop-0"].receive(few))
    five = roster_of(joins, *(f"shop-{i}" for i in range(5, 10)))
    rho = ready(lab, five, "shop-0")
    sends(lab, "shop-0", Go(rho))
    assert charge_of(lab, "shop-0").shares == 2


@check
def everybody_adds_noise_also_without_users() -> None:
    lab = lab_of(4)
    for name in ("shop-1", "shop-2"):
        lab.vectors[name] = np.zeros(lab.plan.entries, dtype=np.int64)
    lab.run(0)
    plain = sum(lab.vectors.values(), np.zeros(lab.plan.entries, dtype=np.int64))
    noise = [lab.noise[name].drawn for name in lab.members]
    assert [len(drawn) for drawn in noise] == [1] * 4
    assert all(np.any(drawn[0]) for drawn in noise)
    assert (lab.hub.total - plain).tolist() == sum(drawn[0] for drawn in noise).tolist()  # type: ignore[union-attr]


@check
def a_further_attempt_has_fresh_keys_and_noise() -> None:
    lab = lab_of(4)
    _, joins = gathered(lab)
    assert all(not lab.noise[name].drawn for name in lab.members), "drawn before the roster is known"
    rho = ready(lab, roster_of(joins))
    lab.members["shop-0"].receive(Abort(rho))
    assert lab.members["shop-0"].state == State.IDLE
    _, again = gathered(lab)
    assert again["shop-0"].key != joins["shop-0"].key
    rho = ready(lab, roster_of(again))
    assert len(lab.noise["shop-0"].drawn) == 2
    values = sends(lab, "shop-0", Go(rho)).values
    one, other = lab.noise["shop-0"].drawn
    assert one.tolist() != other.tolist()
    total = np.frombuffer(values, "<i8").copy()
    for name in ("shop-1", "shop-2", "shop-3"):
        total += np.frombuffer(sends(lab, name, Go(rho)).values, "<i8")
        total -= lab.vectors[name] + lab.noise[name].drawn[-1]
    assert (total - lab.vectors["shop-0"]).tolist() == other.tolist()


# What leaves, and what is stored


@check
def nothing_but_masked_values_follows_from_data() -> None:
    """Two worlds, one of them without any user: equal frames, times and refusals."""
    seen = []
    for factor in (0, 1):
        lab = lab_of(4)
        lab.vectors = {name: factor * vector for name, vector in lab.vectors.items()}
        lab.run(0)
        lab.deliver("", lab.hub.start_again())
        frames = [(s, to, data) for s, to, data in lab.sent if not data.startswith(b"\x93\xa6masked")]
        masked = [(s, len(data)) for s, _, data in lab.sent if data.startswith(b"\x93\xa6masked")]
        seen.append((frames, masked, lab.due, [str(error) for _, error in lab.refused]))
    assert seen[0] == seen[1]
    assert seen[0][1]
    joins = [decoded for decoded in lab.frames(Join) if isinstance(decoded, Join)]
    assert all(len(join.key) == 32 and len(join.signature) == 64 for join in joins)
    assert [due for sender, due in lab.due if sender][:4] == [lab.now + lab.plan.delay] * 4


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@check
def secrets_and_what_is_ready_stay_in_memory() -> None:
    heard, root = _Heard(), logging.getLogger()
    level = root.level
    root.addHandler(heard)
    root.setLevel(logging.DEBUG)
    try:
        lab = lab_of(4)
        before = dict(lab.stores)
        _, joins = gathered(lab)
        assert lab.stores == before, "a Join stores nothing"
        rho = ready(lab, roster_of(joins))
        assert lab.stores == before, "what is ready is not stored"
        values = sends(lab, "shop-0", Go(rho)).values
    finally:
        root.removeHandler(heard)
        root.setLevel(level)
    stored = msgspec.msgpack.encode(lab.stores["shop-0"])
    assert values in stored
    noised = lab.vectors["shop-0"] + lab.noise["shop-0"].drawn[-1]
    secrets = [*lab.entropy["shop-0"].given, lab.vectors["shop-0"].tobytes(), noised.tobytes()]
    secrets += [lab.noise["shop-0"].drawn[-1].tobytes(), identity_of("shop-0").secret]
    for secret in secrets:
        assert secret not in stored
        assert secret.hex().encode() not in stored
        assert not any(secret.hex() in said or repr(secret) in said for said in heard.said)


@check
def a_member_shows_no_vector_and_offers_no_recovery() -> None:
    lab = lab_of(4)
    _, joins = gathered(lab)
    ready(lab, roster_of(joins))
    member = lab.members["shop-0"]
    methods = {"accept", "adopt", "begin", "hold_model", "now", "prepare", "receive", "resend", "tick"}
    facts = {"began", "joined", "record", "refusal", "state"}
    assert {name for name in dir(member) if not name.startswith("_")} == methods | facts | {"discard"}
    shown = repr(member) + "".join(repr(getattr(member, name)) for name in sorted(facts))
    digits = [str(value) for value in lab.vectors["shop-0"].tolist()]
    assert not any(re.search(rf"(?<!\d){re.escape(digit)}(?!\d)", shown) for digit in digits)
    for message in (Join("a", b"", b""), Ready(b"r"), Masked(b"r", b""), Summed(b"r"), Abort(b"r")):
        try:
            step = member.receive(message)
        except FclubError:
            continue
        assert step.messages == ()
    assert member.state == State.READY


@check
def the_hub_shows_no_single_vector_and_not_who_was_late() -> None:
    lab = lab_of(4)
    kept: list[tuple[str, Message]] = []
    lab.deaf = lambda sender, to, message: isinstance(message, Masked)
    lab.watch = lambda sender, message: kept.append((sender, message))
    lab.run(0)
    masked = [(sender, message) for sender, message in kept if isinstance(message, Masked)]
    assert lab.hub.view is not None
    assert lab.hub.view.stage == Stage.GONE
    shown = msgspec.json.encode(lab.hub.view)
    for sender, message in masked[:-1]:
        lab.store("", lab.hub.receive(sender, message))
        assert msgspec.json.encode(lab.hub.view) == shown
    stored = msgspec.msgpack.encode(lab.hub.record) + msgspec.json.encode(lab.hub.view)
    for _, message in masked:
        assert message.values not in stored
        assert message.values.hex().encode() not in stored
    public = {name for name in dir(lab.hub) if not name.startswith("_")}
    expected = {"call", "hold_model", "members", "patience", "plan", "readmit", "receive", "record"}
    assert public == expected | {"set_members", "start_again", "tick", "total", "view"}


@check
def a_charge_is_stored_before_a_vector_leaves() -> None:
    lab = lab_of(4)

    def watch(sender: str, message: Message) -> None:
        if isinstance(message, Masked):
            stored = lab.stores[sender]
            assert [(c.period, c.slot, c.roster) for c in stored.charges] == [(1, 0, message.roster)]
            assert [waiting.message for waiting in stored.outbox] == [message]

    lab.watch = watch
    lab.run(0)
    assert len(lab.frames(Masked)) == 4
    assert all(not stored.outbox and len(stored.charges) == 1 for stored in lab.stores.values())
    found = guarantees(lab.stores["shop-0"].charges, {1: lab.plan}, 1e-5)
    assert 0.0 < found.together.mu < found.alone.mu


@check
def nothing_reads_a_setting_or_makes_chance_of_its_own() -> None:
    """No environment, no configuration, no logging, no generator: no mode without masks."""
    words = r"environ|getenv|settings|logging|print\(|\bimport random|np\.random|debug|pickle"
    for name, text in read_sources().items():
        assert not re.findall(words, text), name


def read_sources() -> dict[str, str]:
    folder = Path(fclub.cohorts.__path__[0])
    return {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}


# Once in a slot


@check
def a_join_meets_one_roster() -> None:
    lab = lab_of(5)
    _, joins = gathered(lab)
    ready(lab, roster_of(joins), "shop-0")
    refuses(NothingReady, lambda: lab.members["shop-0"].receive(roster_of(joins, "shop-4")))
    assert len(lab.noise["shop-0"].drawn) == 1


@check
def a_slot_is_used_once() -> None:
    """After a sum, after a lost slot, after Abort, and after a restart."""
    lab = lab_of(4)
    _, joins = gathered(lab)
    rho = ready(lab, roster_of(joins))
    first = sends(lab, "shop-0", Go(rho))
    assert sends(lab, "shop-0", Go(rho)) == first, "the same bytes for a second Go"
    lab.prepare(0)
    zero = lab.members["shop-0"]
    refuses(SlotUsed, lambda: zero.receive(Call(1, 0, 0, b"m" * 16)))
    refuses(NothingReady, lambda: zero.receive(Go(b"other")))
    lab.store("shop-0", zero.receive(Abort(rho)))
    assert lab.stores["shop-0"].outbox == ()
    refuses(SlotUsed, lambda: zero.receive(Call(1, 0, 0, b"o" * 16)))
    assert len(lab.stores["shop-0"].charges) == 1
    again = lab.start("shop-0")
    again.prepare(1, 0, lab.vectors["shop-0"])
    refuses(SlotUsed, lambda: again.receive(Call(1, 0, 0, b"p" * 16)))


@check
def go_without_a_roster_sends_nothing() -> None:
    lab = lab_of(4)
    call, joins = gathered(lab)
    rho = slow.rho(context_of(lab, call), roster_of(joins).joins)
    refuses(NothingReady, lambda: lab.members["shop-0"].receive(Go(rho)))
    refuses(NothingReady, lambda: lab.members["shop-0"].receive(Go(b"")))


@check
def a_process_from_after_the_beginning_takes_no_part() -> None:
    """Restores between any two steps: before Join, after Join, Ready, Go and Masked."""
    for stage in range(4):
        lab = lab_of(4)
        backup = lab.stores["shop-0"]
        lab.now = lab.plan.times[0] + 10.0
        if stage > 0:
            _, joins = gathered(lab)
        if stage > 1:
            rho = ready(lab, roster_of(joins))
        if stage > 2:
            sends(lab, "shop-0", Go(rho))
        lab.now += 1.0
        restored = lab.start("shop-0", backup)
        restored.prepare(1, 0, lab.vectors["shop-0"])
        charges = lab.stores["shop-0"].charges
        assert [(c.slot, c.presumed) for c in charges] == [(0, True)], "an unknown slot is charged"
        refuses(SlotUsed, partial(restored.receive, Call(1, 0, 0, b"m" * 16)))
        if stage > 0:
            refuses(NothingReady, partial(restored.receive, roster_of(joins)))
        if stage > 1:
            refuses(NothingReady, partial(restored.receive, Go(rho)))
        lab.run(1)
        assert lab.hub.view is not None
        assert lab.hub.view.stage == Stage.SUMMED, "the next slot is as always"


@check
def the_window_counts_process_list_and_clock() -> None:
    lab = lab_of(4)
    begins, tolerance = lab.plan.times[0], lab.plan.tolerance
    call = Call(1, 0, 0, b"n" * 16)

    def process(began: float, now: float) -> Member:
        lab.now = began
        member = lab.start("shop-0", lab_of(4).stores["shop-0"])
        member.prepare(1, 0, lab.vectors["shop-0"])
        lab.now = now
        return member

    early = begins - tolerance - 1
    for now in (begins, begins + lab.plan.window - 1):
        assert process(early, now).receive(call).messages
    for now in (begins - 1, begins + lab.plan.window):
        late = process(early, now)
        refuses(OutsideWindow, partial(late.receive, call))
    for began in (begins - tolerance, begins, begins + 1):
        young = process(began, begins + 1)
        assert lab.stores["shop-0"].charges[-1].presumed
        refuses(SlotUsed, partial(young.receive, call))
    member = process(early, begins - tolerance)
    lab.store("shop-0", member.accept(list_of(lab.identities, epoch=2)))
    lab.now = begins + 1
    refuses(OutsideWindow, lambda: member.receive(call))


@check
def the_window_rule_stands_without_the_books() -> None:
    """Even if presumed charges were left out, a young process stays away."""
    lab = lab_of(4)
    lab.now = lab.plan.times[0] - lab.plan.tolerance
    young = lab.start("shop-0")
    young.record = msgspec.structs.replace(young.record, charges=())
    young.prepare(1, 0, lab.vectors["shop-0"])
    lab.now = lab.plan.times[0] + 5.0
    refuses(OutsideWindow, lambda: young.receive(Call(1, 0, 0, b"n" * 16)))


@check
def the_clock_never_goes_back() -> None:
    lab = lab_of(4)
    lab.run(0)
    lab.now = lab.plan.times[0] - lab.plan.tolerance - 100.0
    again = lab.start("shop-0")
    assert again.began == lab.plan.times[0] + 10.0
    late = lab_of(4)
    late.now = late.plan.times[0] + late.plan.window
    assert late.members["shop-0"].now() == late.now
    late.now -= 10.0
    late.prepare(0)
    refuses(OutsideWindow, lambda: late.members["shop-0"].receive(Call(1, 0, 0, b"n" * 16)))


@check
def what_the_window_overtakes_is_deleted() -> None:
    lab = lab_of(4)
    _, joins = gathered(lab)
    rho = ready(lab, roster_of(joins), "shop-0", "shop-1", "shop-2")
    lab.now = lab.plan.times[0] + lab.plan.window
    refuses(NothingReady, lambda: lab.members["shop-0"].receive(Go(rho)))
    refuses(NothingReady, lambda: lab.members["shop-3"].receive(roster_of(joins)))
    assert all(member.state == State.IDLE for member in (lab.members["shop-0"], lab.members["shop-3"]))
    assert lab.stores["shop-0"].charges == ()


@check
def plans_and_lists_never_go_back() -> None:
    lab = lab_of(3)
    zero = lab.members["shop-0"]
    refuses(InvalidSetting, lambda: zero.adopt(plan_of(times=(1_000, 5_000))))
    refuses(InvalidSetting, lambda: zero.adopt(plan_of(period=2, times=(2_200, 5_000))))
    lab.now = 4_950.0
    refuses(InvalidSetting, lambda: zero.adopt(plan_of(period=2, times=(5_000, 6_000))))
    refuses(InvalidSetting, lambda: zero.accept(list_of(lab.identities[:2], epoch=1)))
    refuses(InvalidSetting, lambda: zero.accept(list_of(lab.identities, epoch=0)))
    assert zero.adopt(lab.plan).change is None
    assert zero.accept(lab.list).change is None
    lab.store("shop-0", zero.adopt(plan_of(period=2, times=(7_000, 8_000))))
    assert [plan.period for plan in lab.stores["shop-0"].plans] == [1, 2]


@check
def who_comes_late_leaves_out_what_has_begun() -> None:
    """A store without a plan may stand in for one that is lost: begun slots count as sent."""
    lab = lab_of(4)
    lab.now = lab.plan.times[1] - lab.plan.tolerance - 1.0
    late = lab.start("shop-0", MemberRecord())
    lab.store("shop-0", late.accept(lab.list))
    lab.store("shop-0", late.adopt(lab.plan))
    assert [(charge.slot, charge.presumed) for charge in late.record.charges] == [(0, True)]
    lab.run(1)
    assert lab.hub.view is not None
    assert lab.hub.view.stage == Stage.SUMMED
    assert [charge.slot for charge in late.record.charges] == [0, 1]
    later = lab.start("shop-0", MemberRecord())
    lab.store("shop-0", later.adopt(lab.plan))
    assert [charge.slot for charge in later.record.charges] == [0, 1]


@check
def other_models_plans_periods_and_slots_are_refused() -> None:
    lab = lab_of(4)
    lab.now = lab.plan.times[0] + 10.0
    lab.prepare(0)
    zero = lab.members["shop-0"]
    for period, slot, version in ((1, 0, 1), (2, 0, 0), (1, 2, 0), (1, -1, 0)):
        call = Call(period, slot, version, b"n" * 16)
        refuses(OtherTerms, partial(zero.receive, call))
    refuses(OutsideWindow, lambda: zero.receive(Call(1, 1, 0, b"n" * 16)))
    lab.members["shop-1"].hold_model(0, b"other bytes of the same version")
    _, joins = gathered(lab)
    refuses(InvalidJoin, lambda: zero.receive(roster_of(joins)))
    assert ready(lab, roster_of(joins, "shop-1"), "shop-0", "shop-2")


@check
def different_rosters_open_nothing() -> None:
    """Sums of what was sent under two rosters are not the sums of the vectors, nor of any part."""
    lab = lab_of(5)
    _, joins = gathered(lab)
    one, other = roster_of(joins, "shop-4"), roster_of(joins, "shop-3")
    sent = {}
    for name, roster in (("shop-0", one), ("shop-1", one), ("shop-2", other), ("shop-4", other)):
        sent[name] = sends(lab, name, Go(ready(lab, roster, name))).values
    total = sum(np.frombuffer(values, "<i8") for values in sent.values())
    plain = sum(lab.vectors[name] + lab.noise[name].drawn[0] for name in sent)
    assert not np.any(np.asarray(total) == plain)
    assert all(np.abs(np.frombuffer(v, "<i8")).max() > 2**55 for v in sent.values())


@check
def a_slot_takes_its_own_vector() -> None:
    lab = lab_of(4)
    _, joins = gathered(lab)
    lab.prepare(1)
    refuses(NothingReady, lambda: lab.members["shop-0"].receive(roster_of(joins)))
    refuses(NothingReady, lambda: lab.members["shop-0"].receive(Call(1, 0, 0, b"n" * 16)))


@check
def calls_for_ever_are_refused() -> None:
    lab = lab_of(3)
    for _ in range(8):
        gathered(lab)
    refuses(CohortRefused, lambda: gathered(lab))


@check
def sums_over_users_stay_in_their_bound() -> None:
    lab = lab_of(3)
    zero, bound = lab.members["shop-0"], lab.plan.bound(0)
    for value in (bound + 1, -bound - 1, -(2**63)):
        vector = np.array([0, 0, 0, 0, value], dtype=np.int64)
        refuses(OutOfRange, partial(zero.prepare, 1, 0, vector))
    refuses(InvalidSetting, lambda: zero.prepare(1, 0, np.zeros(4, dtype=np.int64)))
    refuses(InvalidSetting, lambda: zero.prepare(1, 0, np.zeros(5)))  # type: ignore[arg-type]
    wide = lab_of(3, users=2**41)
    _, joins = gathered(wide)
    refuses(OutOfRange, lambda: wide.members["shop-0"].receive(roster_of(joins)))


@check
def forgetting_sends_nothing() -> None:
    lab = lab_of(4)
    _, joins = gathered(lab)
    zero = lab.members["shop-0"]
    assert zero.discard()
    refuses(NothingReady, lambda: zero.receive(roster_of(joins)))
    zero.prepare(1, 0, lab.vectors["shop-0"])
    rho = ready(lab, roster_of(joins))
    assert not zero.discard(), "what is ready counts as released"
    total = sum(np.frombuffer(sends(lab, name, Go(rho)).values, "<i8") for name in lab.members)
    plain = sum(lab.vectors[name] + lab.noise[name].drawn[0] for name in lab.members)
    assert np.asarray(total).tolist() == np.asarray(plain).tolist()


@check
def frames_are_small() -> None:
    lab = lab_of(4)
    long = "m" * 48
    up = len(encode(Join(long, b"k" * 32, b"s" * 64))) + len(encode(Ready(b"r" * 32)))
    up += len(encode(Masked(b"r" * 32, bytes(8 * 2_300))))
    assert up <= 8 * 2_300 + 400
    roster = Roster(tuple(SignedKey(long, b"k" * 32, b"s" * 64) for _ in range(100)))
    down = len(encode(roster)) + len(encode(Call(1, 1, 1, b"n" * 16))) + 2 * len(encode(Go(b"r" * 32)))
    assert down <= 160 * 100
    lab.run(0)
    assert lab.refused == []
