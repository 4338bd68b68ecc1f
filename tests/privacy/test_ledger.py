"""The ledger adds up what was released, refuses the rest, and survives a file."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.config import Privacy, Protocol
from fclub.core.paper.ucb import tree_bounds
from fclub.errors import InvalidFile, PrivacyError, UnknownName
from fclub.privacy.calibration import compose, epsilon_of, mu_of
from fclub.privacy.ledger import Ledger, ReleaseEvent, read_ledger, write_ledger
from fclub.privacy.levels import CDP, INTERACTIVE, LEVELS, TRANSCRIPT, Flag, level_named
from fclub.privacy.mechanisms import Mechanism, Tree, calibrate
from fclub.privacy.sensitivity import Domain, sensitivity
from fclub.protocol.exchanges.clusters import PhaseClock, phase_tree
from fclub.protocol.rows.paper import affordable

BUDGET = (1.0, 0.1)


def make_ledger(**settings: Any) -> Ledger:
    return Ledger(CDP, *BUDGET, **settings)


def full_stream(releases: int = 8) -> Mechanism:
    return calibrate("increments", mu_of(*BUDGET), 1.25, releases)


def test_a_factorised_stream_costs_its_whole_mu_when_it_starts() -> None:
    ledger = make_ledger()
    ledger.open("a", full_stream(), 1.25)
    assert ledger.spent(0.1) == pytest.approx(1.0)
    for _ in range(8):
        ledger.release("a", 10)
    assert ledger.spent(0.1) == pytest.approx(1.0)
    with pytest.raises(PrivacyError, match="used its 8 releases"):
        ledger.release("a", 10)


@given(costs=st.lists(st.floats(0.01, 0.9), min_size=1, max_size=8))
def test_disjoint_streams_cost_the_largest_and_epochs_add_up(costs: list[float]) -> None:
    parallel, serial = Ledger(CDP, 50.0, 0.1), Ledger(CDP, 50.0, 0.1)
    for i, mu in enumerate(costs):
        parallel.open(f"s{i}", calibrate("increments", mu, 1.0, 5), 1.0)
        serial.open(f"s{i}", calibrate("increments", mu, 1.0, 5), 1.0, epoch=i)
    assert parallel.mu == pytest.approx(max(costs))
    assert serial.mu == pytest.approx(compose(costs))


def test_a_release_over_the_budget_is_refused_and_nothing_is_recorded() -> None:
    stored: list[ReleaseEvent] = []
    ledger = make_ledger(sink=stored.append)
    ledger.open("a", full_stream(), 1.25)
    with pytest.raises(PrivacyError, match="the budget allows"):
        ledger.open("again", full_stream(), 1.25, epoch=1)
    assert len(stored) == len(ledger.events) == 1
    ledger.open("disjoint", full_stream(), 1.25)
    assert ledger.spent(0.1) == pytest.approx(1.0)


def test_a_release_that_could_not_be_stored_is_not_counted() -> None:
    def full_disk(event: ReleaseEvent) -> None:
        raise OSError("no space left")

    ledger = make_ledger(sink=full_disk)
    with pytest.raises(OSError, match="no space"):
        ledger.open("a", full_stream(), 1.25)
    assert ledger.mu == 0.0
    assert ledger.events == []


class Homemade:
    name, releases, std = "tree", 3, 1.0

    def charged(self, releases: int) -> float:
        return 0.0


def test_refuses_what_it_cannot_account_for() -> None:
    ledger = make_ledger()
    with pytest.raises(PrivacyError, match="Homemade"):
        ledger.open("a", Homemade(), 1.0)  # type: ignore[arg-type]
    for std, apart in ((0.0, 1.0), (float("nan"), 1.0), (float("inf"), 1.0), (1.0, 0.0)):
        with pytest.raises(PrivacyError, match="no noise"):
            ledger.open("a", Tree(3, std), apart)
    with pytest.raises(PrivacyError, match="never opened"):
        ledger.release("a", 1)
    ledger.open("a", Tree(3, 100.0), 1.0)
    with pytest.raises(PrivacyError, match="already opened"):
        ledger.open("a", Tree(3, 100.0), 1.0)
    for observations, releases in ((-1, 1), (1, 0)):
        with pytest.raises(PrivacyError, match="no sense"):
            ledger.release("a", observations, releases)


def test_a_tree_is_paid_as_it_grows() -> None:
    ledger = make_ledger()
    ledger.open("t", Tree(100, 10.0), 2.0)
    assert ledger.mu == 0.0
    for leaves in range(1, 65):
        ledger.release("t", 1)
        assert ledger.mu == pytest.approx(0.2 * leaves.bit_length() ** 0.5)


def test_cost_of_the_printed_algorithm() -> None:
    """The printed σ is conservative for one phase; re-releasing in every phase eats that up slowly."""
    bounds = tree_bounds(10, 40, Protocol(), Privacy(1.0, 0.1, 100_000))
    ledger = make_ledger(flags=(Flag.RAW_TRIGGER, Flag.RAW_PARTITION))
    for phase in range(16):
        tree = Tree(bounds.uploads + 1, bounds.noise_std)
        ledger.open(f"phase {phase}", tree, 2.0, epoch=phase)
        ledger.release(f"phase {phase}", 100, releases=tree.releases)
    one_phase = ledger.mu / 4.0
    assert one_phase == pytest.approx(0.0834, rel=0.05)
    assert epsilon_of(one_phase, 0.1) == 0.0
    assert epsilon_of(one_phase, 1e-5) == pytest.approx(0.28, rel=0.05)
    assert ledger.spent(1e-5) == pytest.approx(4 * 0.31, rel=0.1)


@pytest.mark.parametrize("delta", [0.1, 1e-5])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 20.0, 300.0, 1e6])
def test_every_phase_of_the_horizon_is_paid_for_at_any_budget(epsilon: float, delta: float) -> None:
    horizon = 1_000
    claim = affordable(Privacy(epsilon, delta, horizon), 10, Protocol())
    assert claim.epsilon == epsilon if epsilon <= 1.0 else claim.epsilon <= epsilon
    bounds = tree_bounds(10, 40, Protocol(), claim)
    ledger = Ledger(CDP, epsilon, delta, flags=(Flag.RAW_TRIGGER, Flag.RAW_PARTITION))
    tree = phase_tree(bounds.uploads, bounds.noise_std, 10)
    clock = PhaseClock()
    for observations in range(horizon + 1):
        if clock.advance(observations):
            ledger.open(f"phase {clock.phase}", tree, sensitivity(Domain(), 10), epoch=clock.phase)
    assert clock.phase == PhaseClock.phases(horizon)


def test_only_cdp_accepts_raw_triggers_and_partitions() -> None:
    for flag in (Flag.RAW_TRIGGER, Flag.RAW_PARTITION):
        Ledger(CDP, *BUDGET, flags=[flag])
        for level in (TRANSCRIPT, INTERACTIVE):
            with pytest.raises(PrivacyError, match=flag.value):
                Ledger(level, *BUDGET, flags=[flag])
    Ledger(TRANSCRIPT, *BUDGET, flags=[Flag.RAW_CHOICES])
    with pytest.raises(PrivacyError, match="raw-choices"):
        Ledger(INTERACTIVE, *BUDGET, flags=[Flag.RAW_CHOICES])
    with pytest.raises(UnknownName):
        level_named("secret")
    assert list(LEVELS) == ["cdp", "transcript", "interactive"]


def example() -> Ledger:
    ledger = Ledger(CDP, 8.0, 1e-5, flags=[Flag.RAW_PARTITION], seeded=False)
    ledger.open("a", calibrate("increments", 1.0, 0.875, 5), 0.875)
    ledger.release("a", 7)
    ledger.open("b", Tree(9, 4.0), 2.0, epoch=1)
    ledger.release("b", 12, releases=3)
    return ledger


def test_written_and_read_again(tmp_path: Path) -> None:
    ledger, path = example(), tmp_path / "ledger.jsonl"
    write_ledger(ledger, path)
    again = read_ledger(path)
    assert again.events == ledger.events
    assert again.summary() == ledger.summary()


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    ledger, path = example(), tmp_path / "ledger.jsonl"
    write_ledger(ledger, path)
    path.write_bytes(path.read_bytes()[:-5])
    assert read_ledger(path).events == ledger.events[:-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"mu":1.0', b'"mu":0.1'),
        (b'"mechanism":"tree"', b'"mechanism":"rumour"'),
        (b'"sequence":0,"releases":3', b'"sequence":1,"releases":3'),
        (b"fclub-ledger/2", b"fclub-ledger/1"),
        (b'"level":"cdp"', b'"level":"interactive"'),
        (b'"epsilon":8.0', b'"epsilon":0.1'),
        (b'"stream"', b'"steam"'),
    ],
)
def test_a_forged_or_damaged_file_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    write_ledger(example(), path)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    with pytest.raises(InvalidFile, match="line"):
        read_ledger(path)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot read"):
        read_ledger(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidFile, match="no complete line"):
        read_ledger(tmp_path / "empty")
