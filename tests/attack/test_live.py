"""The audit of running servers passes the real ones and fails every broken one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.attack import secret, subtle, subtle_noise
from tests.attack.sabotage import BY_TWINS, IN_NOISE, PRINTED, Sabotage

from fclub.attack.everything import BUDGETS, attack_live, attack_processes
from fclub.attack.exact import Exact
from fclub.attack.live import NUMBERS, Attack
from fclub.attack.pairs import Pair, live_pairs
from fclub.attack.together import attack_by_lies, attack_two_servers
from fclub.privacy.audit import Finding
from fclub.privacy.levels import LEVELS
from fclub.privacy.noise import DiscreteNoise


def quietly(pair: str) -> None:
    """Nobody watches the progress."""


def failed(findings: list[Finding]) -> list[str]:
    return [f"{found.canary}: {found.test}" for found in findings if not found.passed]


def test_every_private_policy_unit_and_level_is_attacked() -> None:
    pairs = live_pairs()
    assert len(pairs) == len(set(pairs)) == 10
    assert {pair.level for pair in pairs} == set(LEVELS)
    assert {pair.policy for pair in pairs} == {"cdp-fclub-dc", "cdp-fclub-plus", "cdp-homo"}
    assert pairs[0].unit == "user"


def at_least(number: int, cases: Sequence[Any]) -> list[Any]:
    """The first of them always, all of them by `make test-long`."""
    return [*cases[:number], *(pytest.param(case, marks=pytest.mark.long) for case in cases[number:])]


@pytest.mark.parametrize("pair", at_least(1, live_pairs()), ids=str)
def test_real_servers_keep_their_promise(pair: Pair) -> None:
    """At a small size; `fclub audit` does the same with more numbers."""
    (result,) = attack_live([pair], ((1.0, 1e-5),), numbers=100)
    assert failed(result.findings) == []


def named(cases: list[tuple[Sabotage, Pair]]) -> list[str]:
    return [f"{sabotage.__name__} of {pair}" for sabotage, pair in cases]


@pytest.mark.parametrize("case", BY_TWINS, ids=named(BY_TWINS))
@pytest.mark.parametrize("budget", at_least(1, BUDGETS))
def test_exact_twins_notice_what_is_not_a_matter_of_noise(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Sabotage, Pair], budget: tuple[float, float]
) -> None:
    sabotage, pair = case
    sabotage(monkeypatch)
    attack = Attack(pair, *budget)
    assert next((found for found in attack.twins() if not found.passed), None) is not None


Case = tuple[Sabotage, Pair]


def cases(number: int, all_of_them: list[Case]) -> list[Any]:
    """With their names; the first of them always, the rest in the long form."""
    names, marks = named(all_of_them), [() if k < number else pytest.mark.long for k in range(99)]
    told = zip(all_of_them, names, marks, strict=False)
    return [pytest.param(case, id=name, marks=mark) for case, name, mark in told]


@pytest.mark.parametrize("case", cases(4, subtle.BY_TWINS) + cases(99, secret.BY_TWINS))
def test_exact_twins_notice_small_things(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    sabotage, pair = case
    sabotage(monkeypatch)
    findings = Attack(pair, *BUDGETS[0]).twins()
    assert next((found for found in findings if not found.passed), None) is not None


@pytest.mark.parametrize(
    "case", cases(4, subtle_noise.BY_WITNESS + subtle.BY_WITNESS) + cases(99, secret.BY_WITNESS)
)
def test_a_witness_notices_noise_that_was_not_drawn(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    sabotage, pair = case
    sabotage(monkeypatch)
    findings = Exact(Attack(pair, *BUDGETS[0], DiscreteNoise())).findings()
    assert next((found for found in findings if not found.passed), None) is not None


@pytest.mark.parametrize("case", cases(2, subtle_noise.BY_TWO))
def test_two_servers_notice_what_one_alone_does_not_show(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    sabotage, pair = case
    attack = Attack(pair, *BUDGETS[0], DiscreteNoise())
    assert failed(attack_two_servers(attack)) == []
    sabotage(monkeypatch)
    assert failed(attack_two_servers(attack)) != []


@pytest.mark.parametrize("case", cases(1, secret.BY_LIES))
def test_a_lying_global_server_notices_what_an_honest_one_does_not(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    sabotage, pair = case
    sabotage(monkeypatch)
    assert failed(attack_by_lies(Attack(pair, *BUDGETS[0]))) != []


def test_the_printed_algorithm_has_no_twins_to_compare() -> None:
    attack = Attack(PRINTED, *BUDGETS[0], DiscreteNoise())
    assert [*Exact(attack).findings()] == []


@pytest.mark.long
@pytest.mark.parametrize("case", cases(99, IN_NOISE + subtle_noise.IN_NOISE + subtle.IN_NOISE))
@pytest.mark.parametrize("budget", BUDGETS)
def test_many_runs_notice_what_is_wrong_with_the_noise(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Sabotage, Pair], budget: tuple[float, float]
) -> None:
    sabotage, pair = case
    sabotage(monkeypatch)
    findings = Attack(pair, *budget, DiscreteNoise()).noise(NUMBERS, quietly)
    assert next((found for found in findings if not found.passed), None) is not None


@pytest.mark.slow
def test_two_processes_draw_their_own_noise() -> None:
    assert attack_processes().passed
