"""What a secure sum costs: CPU of a member and of the hub in one slot, and its bytes.

`python benchmarks/cohorts.py [members …]`; 2,300 entries. A member's part is Call to Ready without the
noise (key, signatures, key agreement, masks), timed on the real state machine; the exact noise, drawn
by OpenDP, is timed by itself.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from hashlib import sha256

import numpy as np

from fclub.cohorts.hub import Hub, HubRecord
from fclub.cohorts.masks import AgreementKey, sign_key
from fclub.cohorts.member import Member, MemberRecord, context_of
from fclub.cohorts.members import Identity, MemberList
from fclub.cohorts.messages import Call, Go, Join, Masked, Message, Ready, Roster, encode
from fclub.cohorts.plan import CohortPlan, draw_share, share_of
from fclub.privacy.noise import DiscreteNoise, NoNoise

ENTRIES = 2_300
REPEATS = 3


def milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return 1_000.0 * (time.process_time() - began)


def measure(members: int) -> None:
    names = [f"member-{number:04}" for number in range(members)]
    identities = [Identity(name, f"of {name}", sha256(name.encode()).hexdigest()) for name in names]
    listed = MemberList("bench", 1, tuple(identity.entry for identity in identities))
    plan = CohortPlan(
        "bench",
        1,
        (1_000,),
        (1 << 20,),
        (1 << 23,),
        (2.0**-20,),
        ENTRIES,
        1_000,
        listed.default_colluders,
        38,
        400,
    )
    now = 0.0
    member = Member(identities[0], MemberRecord(), lambda: now, os.urandom, NoNoise())
    member.begin()
    member.accept(listed)
    member.adopt(plan)
    now = 1_010.0
    hub = Hub(listed, plan, HubRecord(), lambda: now, os.urandom)
    call = hub.call(0).messages[0].message
    assert isinstance(call, Call)
    context = context_of(listed, plan, call, sha256(b"").digest()).digest()
    joins = [
        Join(*sign_key(one.secret, context, one.name, AgreementKey(os.urandom(32)).public))
        for one in identities[1:]
    ]
    for join in joins[:-1]:
        hub.receive(join.name, join)
    best, up = np.inf, 0
    vector = np.arange(ENTRIES)
    for _ in range(REPEATS):
        member.prepare(1, 0, vector)
        answers: list[Message] = []

        def work(answers: list[Message] = answers) -> None:
            own = member.receive(call).messages[0].message
            assert isinstance(own, Join)
            roster = Roster((own.signed, *(join.signed for join in joins)))
            answers.extend((own, roster, member.receive(roster).messages[0].message))

        best = min(best, milliseconds(work))
    own, roster, ready = answers
    assert isinstance(own, Join)
    assert isinstance(ready, Ready)
    masked = member.receive(Go(ready.roster)).messages[0].message
    up = sum(len(encode(message)) for message in (own, ready, masked))
    down = sum(len(encode(message)) for message in (call, roster, Go(ready.roster)))

    checks = milliseconds(lambda: (hub.receive(own.name, own), hub.receive(joins[-1].name, joins[-1])))
    checks *= members / 2
    for name in names:
        hub.receive(name, Ready(ready.roster))
    values = [Masked(ready.roster, os.urandom(8 * ENTRIES)) for _ in names]

    def add() -> None:
        for name, value in zip(names, values, strict=True):
            hub.receive(name, value)

    added = milliseconds(add)
    share = share_of(plan, 0, [entry.organisation for entry in listed.members])
    source = DiscreteNoise()
    draw_share(source, 10, share)
    noise = milliseconds(lambda: draw_share(source, ENTRIES, share))
    print(
        f"{members:>5} members: member {best:7.1f} ms, its noise {noise:6.1f} ms, "
        f"hub {checks:7.1f} ms to check and {added:6.1f} ms to add; "
        f"up {up} bytes (8p + {up - 8 * ENTRIES}), down {down} ({down / members:.0f} a member)"
    )


if __name__ == "__main__":
    for count in [int(word) for word in sys.argv[1:]] or [10, 100, 1_000]:
        measure(count)
