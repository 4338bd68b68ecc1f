"""Cohorts broken on purpose, each in one way that no sum would show; a named check notices each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.cohorts import checks
from tests.cohorts.lab import identity_of

from fclub.cohorts import hub, masks, member, plan
from fclub.cohorts.masks import AgreementKey, SignedKey
from fclub.cohorts.member import Member, Unconfirmed
from fclub.cohorts.members import MemberEntry, MemberList
from fclub.cohorts.messages import Masked, Outgoing, Step
from fclub.cohorts.plan import Share, share_of
from fclub.errors import CohortRefused, InvalidJoin
from fclub.privacy.noise import NoNoise, least_whole

Patch = Callable[[pytest.MonkeyPatch], None]
SABOTAGES: dict[str, tuple[str, Patch]] = {}
"""By name: the check that notices it, and what it patches."""


def sabotage(caught_by: Callable[[], None]) -> Callable[[Patch], Patch]:
    def keep(patch: Patch) -> Patch:
        SABOTAGES[patch.__name__] = (caught_by.__name__, patch)
        return patch

    return keep


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """`around` gets the real function first."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: around(real, *args, **kwargs))


# Cryptography


@sabotage(checks.every_pair_has_a_mask_of_its_own)
def derivation_without_lengths(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(masks, "_end", lambda join: join.name.encode())


@sabotage(checks.masked_values_are_those_of_the_slow_version)
def roster_hash_without_context(patch: pytest.MonkeyPatch) -> None:
    for module in (member, hub):
        wrap(patch, module, "roster_hash", lambda real, context, joins: real(b"", joins))


@sabotage(checks.masked_values_are_those_of_the_slow_version)
def masks_from_numpy(patch: pytest.MonkeyPatch) -> None:
    def drawn(key: bytes, entries: int) -> Any:
        rng = np.random.default_rng(int.from_bytes(key, "big"))
        return rng.integers(0, 2**64, entries, dtype=np.uint64)

    patch.setattr(masks, "mask", drawn)


@sabotage(checks.masked_values_are_those_of_the_slow_version)
def masks_of_32_bits(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, masks, "mask", lambda real, *told: real(*told) & np.uint64(2**32 - 1))


@sabotage(checks.masked_values_are_those_of_the_slow_version)
def seed_of_28_bits(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, masks, "mask_key", lambda real, *told: bytes(28) + real(*told)[:4])


@sabotage(checks.masked_values_are_those_of_the_slow_version)
def derivation_without_the_roster(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, masks, "mask_key", lambda real, secret, rho, *ends: real(secret, b"", *ends))


@sabotage(checks.masked_values_are_those_of_the_slow_version)
def no_masks_for_small_vectors(patch: pytest.MonkeyPatch) -> None:
    """The fall-back is chosen by looking at data."""

    def plain(real: Any, values: Any, *told: Any) -> Any:
        return values.view(np.uint64) if np.abs(values).max() < 2**40 else real(values, *told)

    wrap(patch, member, "add_masks", plain)


@sabotage(checks.masked_values_are_those_of_the_slow_version)
def every_second_pair_without_a_mask(patch: pytest.MonkeyPatch) -> None:
    def thinned(real: Any, values: Any, name: str, key: Any, joins: Any, rho: bytes) -> Any:
        place = [join.name for join in joins].index(name)
        kept = tuple(join for i, join in enumerate(joins) if (i + place) % 2 == 0 or join.name == name)
        return real(values, name, key, kept, rho)

    wrap(patch, member, "add_masks", thinned)


@sabotage(checks.keys_come_from_entropy)
def keys_from_counters(patch: pytest.MonkeyPatch) -> None:
    counter = count(1)
    patch.setattr(
        member, "AgreementKey", lambda secret: AgreementKey(next(counter).to_bytes(32, "big"))
    )


@sabotage(checks.keys_come_from_entropy)
def keys_from_the_identity(patch: pytest.MonkeyPatch) -> None:
    """The same after every restart."""

    def derived(real: Any, self: Member, call: Any) -> Any:
        self._entropy = lambda length: sha256(self._identity.secret + call.nonce).digest()
        return real(self, call)

    wrap(patch, Member, "_call", derived)


@sabotage(checks.large_sums_are_exact)
def modulus_of_61_bits(patch: pytest.MonkeyPatch) -> None:
    def reduced(vectors: Any, entries: int) -> Any:
        total = sum(np.frombuffer(v, "<u8").astype(object) for v in vectors)
        return np.array([int(v) % (2**61 - 1) for v in np.asarray(total)], dtype=np.int64)

    patch.setattr(hub, "add_up", reduced)


@sabotage(checks.large_sums_are_exact)
def sums_in_floats(patch: pytest.MonkeyPatch) -> None:
    wrap(
        patch,
        hub,
        "add_up",
        lambda real, *told: real(*told).astype(np.float64).astype(np.int64),
    )


@sabotage(checks.large_sums_are_exact)
def saturation(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, hub, "add_up", lambda real, *told: np.clip(real(*told), -(2**55), 2**55))


@sabotage(checks.a_join_of_another_context_is_refused)
def signature_over_a_context_that_comes_along(patch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def signing(real: Any, private: bytes, context: bytes, *told: Any) -> Any:
        seen.append(context)
        return real(private, context, *told)

    def lenient(real: Any, public: bytes, context: bytes, join: SignedKey) -> None:
        for brought in [context, *seen]:
            try:
                return real(public, brought, join)
            except InvalidJoin:
                continue
        raise InvalidJoin("none fits")

    wrap(patch, member, "sign_key", signing)
    wrap(patch, member, "check_signature", lenient)


@sabotage(checks.a_substituted_key_is_refused)
def signatures_of_oneself_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member, "check_signature", lambda *told: None)


@sabotage(checks.equal_odd_and_small_keys_are_refused)
def any_key_will_do(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member, "check_keys", lambda joins: None)


@sabotage(checks.equal_odd_and_small_keys_are_refused)
def equal_keys_by_bytes_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(masks, "_PRIME", 2**256)


@sabotage(checks.equal_odd_and_small_keys_are_refused)
def zero_secrets(patch: pytest.MonkeyPatch) -> None:
    def lenient(real: Any, self: AgreementKey, name: str, key: bytes) -> bytes:
        return bytes(32) if not any(key) else bytes(real(self, name, key))

    wrap(patch, AgreementKey, "shared", lenient)


@sabotage(checks.rosters_have_known_names_in_order_and_the_own_join)
def member_list_from_the_hub(patch: pytest.MonkeyPatch) -> None:
    def entry(real: Any, self: MemberList, name: str) -> MemberEntry:
        known = identity_of(name).entry
        return self.by_name.get(name, known)

    wrap(patch, MemberList, "entry", entry)


@sabotage(checks.rosters_have_known_names_in_order_and_the_own_join)
def own_join_by_name_only(patch: pytest.MonkeyPatch) -> None:
    def lenient(real: Any, roster: Any, joined: Any, members: MemberList) -> Any:
        own = next((join for join in roster.joins if join.name == joined.join.name), joined.join)
        return real(roster, joined._replace(join=own), members)

    wrap(patch, member, "check_roster", lenient)


# Noise


@sabotage(checks.organisations_collude_with_all_their_members)
def organisations_counted_as_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "colluding", lambda organisations, colluders: colluders)


@sabotage(checks.shares_follow_from_the_roster_that_came)
def shares_of_the_configured_size(patch: pytest.MonkeyPatch) -> None:
    def configured(terms: Any, slot: int, organisations: Any) -> Share:
        return share_of(terms, slot, [str(i) for i in range(8)])

    patch.setattr(member, "share_of", configured)


@sabotage(checks.colluders_are_counted_in_the_federation)
def colluders_of_the_roster(patch: pytest.MonkeyPatch) -> None:
    def few(terms: Any, slot: int, organisations: Any) -> Share:
        colluders = max(1, (len(set(organisations)) - 1) // 3)
        return share_of(msgspec.structs.replace(terms, colluders=colluders), slot, organisations)

    patch.setattr(member, "share_of", few)


@sabotage(checks.shares_follow_from_the_roster_that_came)
def shares_rounded_down(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "least_whole", lambda deviation, shares: least_whole(deviation, shares) - 1)


@sabotage(checks.everybody_adds_noise_also_without_users)
def no_noise_without_users(patch: pytest.MonkeyPatch) -> None:
    def quiet(real: Any, self: Member, roster: Any) -> Any:
        if self._prepared is not None and not self._prepared.vector.any():
            self._noise = NoNoise()
        return real(self, roster)

    wrap(patch, Member, "_roster", quiet)


@sabotage(checks.a_further_attempt_has_fresh_keys_and_noise)
def noise_kept_for_a_retry(patch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Any] = {}

    def once(real: Any, source: Any, entries: int, share: Share) -> Any:
        return kept.setdefault(id(source), None) or _keep(real(source, entries, share), source)

    def _keep(drawn: Any, source: Any) -> Any:
        kept[id(source)] = drawn.tolist()
        return drawn

    def remembered(real: Any, source: Any, entries: int, share: Share) -> Any:
        found = once(real, source, entries, share)
        return np.array(found, dtype=np.int64)

    wrap(patch, member, "draw_share", remembered)


@sabotage(checks.a_further_attempt_has_fresh_keys_and_noise)
def noise_drawn_before_the_roster(patch: pytest.MonkeyPatch) -> None:
    def early(real: Any, self: Member, call: Any) -> Any:
        terms = self._plan(call.period, call.slot)
        self._noise.integers(np.full(terms.entries, 100.0))
        return real(self, call)

    wrap(patch, Member, "_call", early)


# What leaves, and what is stored


@sabotage(checks.nothing_but_masked_values_follows_from_data)
def a_count_in_a_join(patch: pytest.MonkeyPatch) -> None:
    def counted(real: Any, self: Member, call: Any) -> Step:
        step = real(self, call)
        (out,) = step.messages
        active = bytes([int(np.count_nonzero(self._prepared.vector))]) if self._prepared else b""
        message = msgspec.structs.replace(out.message, signature=out.message.signature + active)
        return Step(None, (out._replace(message=message),))

    wrap(patch, Member, "_call", counted)


@sabotage(checks.nothing_but_masked_values_follows_from_data)
def a_delay_by_the_size_of_the_sum(patch: pytest.MonkeyPatch) -> None:
    def delayed(real: Any, self: Member, call: Any) -> Step:
        (out,) = real(self, call).messages
        active = int(np.count_nonzero(self._prepared.vector)) if self._prepared else 0
        return Step(None, (out._replace(due=out.due + 0.001 * active),))

    wrap(patch, Member, "_call", delayed)


@sabotage(checks.nothing_but_masked_values_follows_from_data)
def a_count_in_a_refusal(patch: pytest.MonkeyPatch) -> None:
    def counted(real: Any, self: Member, call: Any) -> Step:
        if self._prepared is not None and np.count_nonzero(self._prepared.vector) < 3:
            raise CohortRefused("too few users have visited")
        return real(self, call)

    wrap(patch, Member, "_call", counted)


@sabotage(checks.nothing_but_masked_values_follows_from_data)
def not_joining_because_nothing_is_new(patch: pytest.MonkeyPatch) -> None:
    def lazy(real: Any, self: Member, call: Any) -> Step:
        news = self._prepared is not None and self._prepared.vector.any()
        return real(self, call) if news else Step()

    wrap(patch, Member, "_call", lazy)


@sabotage(checks.secrets_and_what_is_ready_stay_in_memory)
def a_key_in_the_store(patch: pytest.MonkeyPatch) -> None:
    def stored(real: Any, self: Member, call: Any) -> Step:
        step = real(self, call)
        key = self._entropy.given[-1]  # type: ignore[attr-defined]
        waiting = Unconfirmed(0, 0, Masked(b"key", key))
        return self._store(outbox=(*self.record.outbox, waiting))._replace(messages=step.messages)

    wrap(patch, Member, "_call", stored)


@sabotage(checks.secrets_and_what_is_ready_stay_in_memory)
def a_key_in_the_log(patch: pytest.MonkeyPatch) -> None:
    def logged(secret: bytes) -> AgreementKey:
        logging.getLogger("fclub").debug("agreed with %s", secret.hex())
        return AgreementKey(secret)

    patch.setattr(member, "AgreementKey", logged)


@sabotage(checks.secrets_and_what_is_ready_stay_in_memory)
def ready_in_the_store(patch: pytest.MonkeyPatch) -> None:
    def stored(real: Any, self: Member, roster: Any) -> Step:
        step = real(self, roster)
        assert self._ready is not None
        waiting = Unconfirmed(1, 0, Masked(self._ready.roster, self._ready.values))
        return self._store(outbox=(*self.record.outbox, waiting))._replace(messages=step.messages)

    wrap(patch, Member, "_roster", stored)


@sabotage(checks.a_member_shows_no_vector_and_offers_no_recovery)
def a_page_with_the_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Member, "page", property(lambda self: {"sum": self._prepared.vector.tolist()}), raising=False
    )


@sabotage(checks.a_member_shows_no_vector_and_offers_no_recovery)
def a_sum_in_a_reason(patch: pytest.MonkeyPatch) -> None:
    def told(real: Any, self: Member, roster: Any) -> Step:
        self.refusal = f"last sum {self._prepared.vector.tolist() if self._prepared else ''}"
        return real(self, roster)

    wrap(patch, Member, "_roster", told)


@sabotage(checks.a_member_shows_no_vector_and_offers_no_recovery)
def recovery_for_convenience(patch: pytest.MonkeyPatch) -> None:
    """Somebody is gone: the others are asked for what they share with it."""

    def disclose(real: Any, self: Member, message: Any) -> Step:
        if isinstance(message, Masked) and self._ready is not None:
            return Step(None, (Outgoing("", Masked(message.roster, self._ready.values)),))
        return real(self, message)

    wrap(patch, Member, "receive", disclose)


@sabotage(checks.the_hub_shows_no_single_vector_and_not_who_was_late)
def single_vectors_on_the_page_of_the_hub(patch: pytest.MonkeyPatch) -> None:
    def shown(real: Any, self: Any, sender: str, message: Masked) -> Step:
        step = real(self, sender, message)
        self._show(msgspec.structs.replace(self.record.slots[-1], reason=message.values.hex()))
        return step

    wrap(patch, hub.Hub, "_take_masked", shown)


@sabotage(checks.the_hub_shows_no_single_vector_and_not_who_was_late)
def who_was_late(patch: pytest.MonkeyPatch) -> None:
    def shown(real: Any, self: Any, sender: str, message: Masked) -> Step:
        step = real(self, sender, message)
        missing = tuple(name for name in self.members.by_name if name not in self._masked)
        self._show(msgspec.structs.replace(self.record.slots[-1], missing=missing))
        return step

    wrap(patch, hub.Hub, "_take_masked", shown)


@sabotage(checks.a_charge_is_stored_before_a_vector_leaves)
def charged_at_the_sum(patch: pytest.MonkeyPatch) -> None:
    def later(real: Any, self: Member, go: Any) -> Step:
        step = real(self, go)
        if step.change is not None:
            self.record = msgspec.structs.replace(self.record, charges=self.record.charges[:-1])
            step = step._replace(change=self.record)
        return step

    wrap(patch, Member, "_go", later)


@sabotage(checks.a_charge_is_stored_before_a_vector_leaves)
def sent_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, Member, "_go", lambda real, *told: real(*told)._replace(change=None))


@sabotage(checks.nothing_reads_a_setting_or_makes_chance_of_its_own)
def a_mode_without_masks(patch: pytest.MonkeyPatch) -> None:
    code = '\nif os.environ.get("FCLUB_PLAIN"):\n    return values\n'
    wrap(patch, checks, "read_sources", lambda real: {n: t + code for n, t in real().items()})


# Once in a slot


@sabotage(checks.a_join_meets_one_roster)
def one_key_for_two_rosters(patch: pytest.MonkeyPatch) -> None:
    def kept(real: Any, self: Member, roster: Any) -> Step:
        joined = self._joined
        step = real(self, roster)
        self._joined = joined
        return step

    wrap(patch, Member, "_roster", kept)


@sabotage(checks.a_slot_is_used_once)
def retry_after_go(patch: pytest.MonkeyPatch) -> None:
    def lenient(real: Any, self: Member, terms: Any, slot: int) -> None:
        held, self.record = self.record, msgspec.structs.replace(self.record, charges=())
        try:
            real(self, terms, slot)
        finally:
            self.record = held

    wrap(patch, Member, "_check_window", lenient)


@sabotage(checks.a_slot_is_used_once)
def abort_gives_the_slot_back(patch: pytest.MonkeyPatch) -> None:
    def free(real: Any, self: Member, abort: Any) -> Step:
        real(self, abort)
        kept = tuple(charge for charge in self.record.charges if charge.roster != abort.roster)
        return self._store(charges=kept)

    wrap(patch, Member, "_abort", free)


@sabotage(checks.a_slot_is_used_once)
def a_second_go_masks_again(patch: pytest.MonkeyPatch) -> None:
    def again(real: Any, self: Member, go: Any) -> Step:
        step = real(self, go)
        if step.change is not None:
            return step
        values = step.messages[0].message.values
        return Step(None, (Outgoing("", Masked(go.roster, values[::-1])),))

    wrap(patch, Member, "_go", again)


@sabotage(checks.a_process_from_after_the_beginning_takes_no_part)
def restored_books_are_believed(patch: pytest.MonkeyPatch) -> None:
    def trusting(real: Any, self: Member) -> Step:
        charges = self.record.charges
        real(self)
        return self._store(charges=charges)

    wrap(patch, Member, "begin", trusting)


def began_earlier(patch: pytest.MonkeyPatch, seconds: float) -> None:
    def earlier(real: Any, self: Member, terms: Any, slot: int) -> None:
        held = self.began
        self.began = -1.0 if held is None else held - seconds
        try:
            real(self, terms, slot)
        finally:
            self.began = held

    wrap(patch, Member, "_check_window", earlier)


@sabotage(checks.who_comes_late_leaves_out_what_has_begun)
def late_plans_leave_begun_slots_open(patch: pytest.MonkeyPatch) -> None:
    def adopt(real: Any, self: Member, told: Any) -> Step:
        charges, _ = self.record.charges, real(self, told)
        return self._store(charges=charges)

    wrap(patch, Member, "adopt", adopt)


@sabotage(checks.the_window_rule_stands_without_the_books)
def the_window_weakened_by_one_second(patch: pytest.MonkeyPatch) -> None:
    began_earlier(patch, 1.0)


@sabotage(checks.the_window_rule_stands_without_the_books)
def no_tolerance_for_clocks(patch: pytest.MonkeyPatch) -> None:
    began_earlier(patch, 60.0)


@sabotage(checks.the_window_counts_process_list_and_clock)
def a_list_from_after_the_beginning(patch: pytest.MonkeyPatch) -> None:
    def older(real: Any, self: Member, terms: Any, slot: int) -> None:
        held, self.record = self.record, msgspec.structs.replace(self.record, accepted=0.0)
        try:
            real(self, terms, slot)
        finally:
            self.record = held

    wrap(patch, Member, "_check_window", older)


@sabotage(checks.the_clock_never_goes_back)
def the_machine_is_always_right(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "now", lambda self: self._clock())


@sabotage(checks.what_the_window_overtakes_is_deleted)
def ready_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "tick", lambda self: None)


@sabotage(checks.plans_and_lists_never_go_back)
def a_new_plan_in_the_same_period(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "adopt", lambda self, terms: self._store(plans=(terms,)))


@sabotage(checks.plans_and_lists_never_go_back)
def a_list_of_an_earlier_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "accept", lambda self, found: self._store(members=found, accepted=self.now()))


@sabotage(checks.other_models_plans_periods_and_slots_are_refused)
def context_without_the_model(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, member, "context_of", lambda real, a, b, c, model: real(a, b, c, b""))


@sabotage(checks.a_slot_takes_its_own_vector)
def the_vector_of_another_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "_vector", lambda self, call: self._prepared.vector)


@sabotage(checks.calls_for_ever_are_refused)
def as_many_calls_as_you_like(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member, "ATTEMPTS", 10**9)


@sabotage(checks.sums_over_users_stay_in_their_bound)
def no_range(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "RANGE", 2**80)


@sabotage(checks.forgetting_sends_nothing)
def forgotten_after_it_is_ready(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "discard", lambda self: True)
