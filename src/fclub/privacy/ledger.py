"""The ledger: every release is entered before it leaves, with what it cost.

A stream is a sequence of releases with correlated noise. Streams of one epoch hold disjoint
observations, so the epoch costs the most expensive of its streams (parallel composition). Data that
is released again belongs to another epoch, and epochs add up: μ² = Σ_epochs max_streams μ².
Noise is discrete, so μ holds up to a total variation, which adds up in the same way without squares.

A ledger has a unit. With unit `event` μ is for one observation that is replaced. With unit `user` it is
for all observations of one user, withdrawn, and twice as large if they are replaced; an epoch is then a
period, each of which has the whole budget.

As a file a ledger is JSON lines: a header, then one entry per line in the order of release.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf, sqrt
from pathlib import Path
from typing import NamedTuple

import msgspec

from fclub.errors import FclubError, InvalidFile, PrivacyError
from fclub.privacy.calibration import STRICT_DELTA, delta_of, epsilon_of
from fclub.privacy.levels import EVENT, Flag, Level, level_named
from fclub.privacy.mechanisms import LEAST_STEPS, MECHANISMS, Mechanism

FORMAT = "fclub-ledger/2"
_SLACK = 1.0 + 1e-9
"""Rounding that a stream calibrated to exactly the budget may need."""


class ReleaseEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry: the opening of a stream (`releases` = 0) or releases that are about to leave.

    `mechanism` adds noise of base deviation `std`, in multiples of `step`, to `entries` numbers whose
    whitened sensitivity at deviation 1 is `sensitivity`, for at most `provision` releases.
    `sequence` is the number of releases of the stream before this entry, `observations` what these
    ones add. `mu` and the total variation `distance` are what the stream has cost the `unit` once they
    have left.
    """

    stream: str
    epoch: int
    sequence: int
    releases: int
    observations: int
    mechanism: str
    provision: int
    std: float
    step: float
    entries: int
    sensitivity: float
    mu: float
    distance: float
    unit: str = EVENT


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a ledger file."""

    format: str
    level: str
    epsilon: float
    delta: float
    flags: tuple[Flag, ...]
    seeded: bool
    unit: str = EVENT


class Cost(NamedTuple):
    """At most this total variation from what is μ-GDP."""

    mu: float
    distance: float


NOTHING = Cost(0.0, 0.0)


class Stream:
    """An open stream, of which `sequence` releases with all their `observations` have been entered."""

    def __init__(self, mechanism: Mechanism, sensitivity: float, epoch: int) -> None:
        self.mechanism, self.sensitivity, self.epoch = mechanism, sensitivity, epoch
        self.sequence = self.observations = 0

    def cost(self, sequence: int) -> Cost:
        """What it has cost after this number of releases."""
        mechanism = self.mechanism
        return Cost(mechanism.cost(self.sensitivity, sequence), mechanism.distance(sequence))

    @property
    def mu(self) -> float:
        """What it has cost so far."""
        return self.cost(self.sequence).mu

    @property
    def distance(self) -> float:
        """The total variation up to which this holds."""
        return self.cost(self.sequence).distance


Sink = Callable[[ReleaseEvent], None]
"""Stores an entry durably; called before the release may leave."""

CostOf = Callable[[float, float], float]
"""ρ of zCDP that a library's privacy map gives: for a scale, and data this far apart."""

_AGREED = 1e-9
"""Relative difference that is rounding: libraries round up, in doubles."""


class Ledger:
    """Accounts of one local server, or of one simulated federation.

    `epsilon` and `delta` are the claim that is never exceeded. `seeded` marks noise that can be
    replayed, as in every simulation. Entries are kept in `events`, unless a long life and a sink that
    has them make this a waste. `library_cost` is asked about every stream that is opened, where exact
    noise is drawn. `exhausted` tells that a stream was asked for that the budget does not
    allow.
    """

    def __init__(
        self,
        level: Level,
        epsilon: float,
        delta: float,
        flags: Iterable[Flag] = (),
        seeded: bool = True,
        sink: Sink | None = None,
        keep: bool = True,
        unit: str = EVENT,
    ) -> None:
        self.level, self.claimed, self.flags = level, (epsilon, delta), frozenset(flags)
        self.seeded, self.sink, self.keep, self.unit = seeded, sink, keep, unit
        self.library_cost: CostOf | None = None
        level.check(self.flags)
        self.restore(())

    @staticmethod
    def of(header: Header) -> Ledger:
        """An empty ledger with the claim of a stored one."""
        if header.format != FORMAT:
            raise InvalidFile(
                f"a ledger of format {header.format!r}, expected {FORMAT!r}; one that an older version "
                "has written is read by that version"
            )
        level = level_named(header.level)
        claim = level, header.epsilon, header.delta, header.flags, header.seeded
        return Ledger(*claim, unit=header.unit)

    def restore(self, events: Iterable[ReleaseEvent]) -> None:
        """Forget everything and enter these stored entries, which are not stored again."""
        self.exhausted = False
        self.events: list[ReleaseEvent] = []
        self.streams: dict[str, Stream] = {}
        self._epochs: dict[int, Cost] = {}
        sink, self.sink = self.sink, None
        for event in events:
            self.replay(event)
        self.sink = sink

    @property
    def mu(self) -> float:
        """What the most exposed observation or user has cost so far."""
        return _total(self._epochs.values()).mu

    @property
    def distance(self) -> float:
        """The total variation up to which this holds, since noise is discrete."""
        return _total(self._epochs.values()).distance

    @property
    def period(self) -> int:
        """The last period in which something was released, with unit `user`."""
        return max(self._epochs, default=0)

    @property
    def mu_of_period(self) -> float:
        return self._epochs.get(self.period, NOTHING).mu

    def spent(self, delta: float) -> float:
        """ε at this δ."""
        return epsilon_of(self.mu, delta, self.distance)

    def _allows(self, total: Cost) -> bool:
        epsilon, delta = self.claimed
        return delta_of(epsilon, *total) <= delta * _SLACK

    def account(self, deltas: Iterable[float]) -> dict[str, object]:
        """What was spent, with its unit; of users also for data that are replaced, and by period."""

        def at_all(mu: float, distance: float) -> list[list[float]]:
            return [[epsilon_of(mu, delta, distance), delta] for delta in at]

        at, distance = list(deltas), self.distance
        shown: dict[str, object] = {"unit": self.unit, "spent": at_all(self.mu, distance)}
        if self.unit == EVENT:
            return shown
        period = self._epochs.get(self.period, NOTHING)
        last = {"number": self.period, "spent": at_all(*period)}
        return shown | {"spent_if_replaced": at_all(2.0 * self.mu, distance), "period": last}

    def is_open(self, stream: str) -> bool:
        """Whether a stream was started: it is paid once, also when its first release then fails."""
        return stream in self.streams

    def admits(self, mechanism: Mechanism, sensitivity: float, epoch: int = 0) -> bool:
        """Whether the budget allows one more stream, used to its end; remembers a refusal."""
        _, total = self._after(Stream(mechanism, sensitivity, epoch), mechanism.releases)
        allowed = self._allows(total)
        self.exhausted |= not allowed
        return allowed

    def open(
        self, stream: str, mechanism: Mechanism, sensitivity: float, epoch: int = 0
    ) -> ReleaseEvent:
        """Start a stream. A mechanism that is paid in advance is charged here, in full."""
        if MECHANISMS.get(mechanism.name) is not type(mechanism):
            raise PrivacyError(f"the ledger cannot account for a {type(mechanism).__name__}")
        if stream in self.streams:
            raise PrivacyError(f"stream {stream!r} was already opened")
        enough = 0.0 < LEAST_STEPS * mechanism.step <= mechanism.std < inf and mechanism.entries >= 1
        if not (enough and 0.0 < sensitivity < inf and mechanism.releases >= 1):
            raise PrivacyError(f"stream {stream!r} has no noise that could be accounted for")
        if self.library_cost is not None:
            _agree(mechanism, sensitivity, self.library_cost)
        account = Stream(mechanism, sensitivity, epoch)
        entered = self._enter(stream, account, 0, 0)
        self.streams[stream] = account
        return entered

    def release(self, stream: str, observations: int, releases: int = 1) -> ReleaseEvent:
        """Enter the next release of a stream, or several at once, about to leave."""
        account = self.streams.get(stream)
        if account is None:
            raise PrivacyError(f"stream {stream!r} was never opened")
        if releases < 1 or observations < 0:
            raise PrivacyError(f"{releases} releases of {observations} observations make no sense")
        if account.sequence + releases > account.mechanism.releases:
            raise PrivacyError(f"stream {stream!r} has used its {account.mechanism.releases} releases")
        return self._enter(stream, account, releases, observations)

    def _after(self, account: Stream, releases: int) -> tuple[Cost, Cost]:
        """What the stream's epoch, and what the budget is for, has cost once it has made `releases`."""
        cost, before = account.cost(releases), self._epochs.get(account.epoch, NOTHING)
        after = Cost(max(before.mu, cost.mu), max(before.distance, cost.distance))
        if self.unit != EVENT:
            return after, after
        others = (cost for epoch, cost in self._epochs.items() if epoch != account.epoch)
        return after, _total([*others, after])

    def _enter(self, stream: str, account: Stream, releases: int, observations: int) -> ReleaseEvent:
        after, total = self._after(account, account.sequence + releases)
        epsilon, delta = self.claimed
        if not self._allows(total):
            raise PrivacyError(
                f"stream {stream!r} would bring the cost to μ={total.mu:.6g}, "
                f"δ={delta_of(epsilon, *total):.6g} at ε={epsilon:g}; the budget allows {delta:g}"
            )
        cost = account.cost(account.sequence + releases)
        event = ReleaseEvent(
            stream=stream,
            epoch=account.epoch,
            sequence=account.sequence,
            releases=releases,
            observations=observations,
            mechanism=account.mechanism.name,
            provision=account.mechanism.releases,
            std=account.mechanism.std,
            step=account.mechanism.step,
            entries=account.mechanism.entries,
            sensitivity=account.sensitivity,
            mu=cost.mu,
            distance=cost.distance,
            unit=self.unit,
        )
        if self.sink is not None:
            self.sink(event)
        if self.keep:
            self.events.append(event)
        self._epochs[account.epoch] = after
        account.sequence += releases
        account.observations += observations
        return event

    def replay(self, event: ReleaseEvent) -> None:
        """Enter a stored entry again; one that does not follow from those before is refused."""
        if event.releases == 0:
            kind = MECHANISMS.get(event.mechanism)
            if kind is None:
                raise PrivacyError(f"the ledger cannot account for {event.mechanism!r}")
            mechanism = kind(event.provision, event.std, event.entries, event.step)
            entered = self.open(event.stream, mechanism, event.sensitivity, event.epoch)
        else:
            entered = self.release(event.stream, event.observations, event.releases)
        if entered != event:
            raise PrivacyError(f"an entry of stream {event.stream!r} does not follow from those before")

    @property
    def header(self) -> Header:
        epsilon, delta = self.claimed
        flags = tuple(sorted(self.flags))
        return Header(FORMAT, self.level.name, epsilon, delta, flags, self.seeded, self.unit)

    def summary(self) -> dict[str, object]:
        """Claimed and spent budget, as `fclub run --json` shows it."""
        epsilon, delta = self.claimed
        return {
            "claimed": [epsilon, delta],
            **self.account((delta, STRICT_DELTA)),
            "distance": self.distance,
            "notion": self.level.name,
            "unaccounted": sorted(str(flag) for flag in self.flags),
            "seeded": self.seeded,
        }


def _agree(mechanism: Mechanism, sensitivity: float, library_cost: CostOf) -> None:
    """Refuse a stream of which whoever draws its noise says that it costs something else.

    Seen through L⁻¹ a whole stream is one Gaussian release of data that are c·Δ apart: ρ = μ²/2 of
    zCDP, with μ = c·Δ/σ. The library counts in steps.
    """
    step, apart = mechanism.step, mechanism.multiplier(mechanism.releases) * sensitivity
    told = sqrt(2.0 * library_cost(mechanism.std / step, apart / step))
    mu = apart / mechanism.std
    if not abs(told - mu) <= _AGREED * mu or mechanism.cost(sensitivity, mechanism.releases) < mu:
        raise PrivacyError(
            f"a stream of {mechanism.name} costs μ={mu:.9g}, the library that draws its noise says "
            f"{told:.9g}: nothing is released until the two agree"
        )


def _total(costs: Collection[Cost]) -> Cost:
    """Epochs add up."""
    return Cost(sqrt(sum(cost.mu**2 for cost in costs)), sum(cost.distance for cost in costs))


_encoder = msgspec.json.Encoder()
_header = msgspec.json.Decoder(Header)
_event = msgspec.json.Decoder(ReleaseEvent)


def write_ledger(ledger: Ledger, path: Path) -> None:
    """A whole ledger at once."""
    entries: list[Header | ReleaseEvent] = [ledger.header, *ledger.events]
    path.write_bytes(b"".join(_encoder.encode(entry) + b"\n" for entry in entries))


def read_ledger(path: Path) -> Ledger:
    """Read and re-account a ledger; every cost is computed again, not believed.

    A last line without its end was cut off by a crash: its release never left, and it is left out.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise InvalidFile(f"cannot read {path}: {error.strerror}") from None
    if not lines:
        raise InvalidFile(f"{path} is no ledger: it has no complete line")
    try:
        ledger = Ledger.of(_header.decode(lines[0]))
    except (msgspec.DecodeError, FclubError) as error:
        raise InvalidFile(f"{path}, line 1: {error}") from None
    for number, line in enumerate(lines[1:], start=2):
        try:
            ledger.replay(_event.decode(line))
        except (msgspec.DecodeError, FclubError) as error:
            raise InvalidFile(f"{path}, line {number}: {error}") from None
    return ledger
