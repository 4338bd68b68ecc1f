"""The audit that generates histories: clean where nothing is broken, and it finds what is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import Phase, find, settings
from tests.attack.foreseen import FORESEEN, PRESENCE
from tests.attack.sabotage import SECURE, USERS, Sabotage

from fclub.attack import histories as made
from fclub.attack.everything import BUDGETS
from fclub.attack.histories import FORGET, STOCK, Copy, History, PutBack, Request, Visits
from fclub.attack.live import Attack
from fclub.attack.pairs import Pair, live_pairs
from fclub.attack.search import HISTORIES, Federation, Neighbours, search, search_all
from fclub.protocol.exchanges.slots import SlotsGlobal
from fclub.service.http.api import OPERATIONS
from fclub.service.http.openapi import Operation

PAIRS = [pair for pair in live_pairs() if not pair.printed]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_no_two_neighbours_can_be_told_apart(pair: Pair) -> None:
    found = search(pair, *BUDGETS[0], count=6)
    assert found.tried == 6
    assert found.history is None, f"{found.failures}\n{found.history}"


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_no_two_neighbours_of_many_can_be_told_apart(pair: Pair, budget: tuple[float, float]) -> None:
    count = -(-HISTORIES // (len(PAIRS) * len(BUDGETS)))
    found = search(pair, *budget, count, seed=1)
    assert found.tried >= count
    assert found.history is None, f"{found.failures}\n{found.history}"


RULES = settings(deadline=None, database=None, phases=[Phase.generate])


@pytest.mark.parametrize("key", made.searched(USERS), ids=str)
def test_every_route_that_changes_something_is_searched(key: tuple[str, str]) -> None:
    found = find(made.requests(key), lambda request: True, settings=RULES)
    assert found.path.startswith(key[1].partition("{")[0])
    assert (found.body is None) == (OPERATIONS[key].body is None)


class Told(msgspec.Struct):
    user: str
    mood: float


def test_a_route_that_is_added_is_searched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ("post", "/v1/moods")
    monkeypatch.setattr(made, "OPERATIONS", {**OPERATIONS, key: Operation(None, "", Told)})
    assert key in made.searched(USERS)
    found = find(made.requests(key), lambda request: True, settings=RULES)
    assert found.body.here.keys() == {"user", "mood"}


def test_a_history_reads_as_what_was_done() -> None:
    history = History((Visits(5, 0, 1), PutBack()), "withdrawn", "u0")
    assert str(history) == (
        "of u0: withdrawn; items alike\n  Visits(count=5, seed=0, other=1, known=False)\n  PutBack()"
    )


def test_a_search_ends_when_its_time_is_over() -> None:
    assert list(search_all(PAIRS, BUDGETS, 0, seconds=1e-9)) == []
    (found,) = search_all(PAIRS[:1], BUDGETS[:1], 3)
    assert (found.tried, found.history) == (3, None)


def named(case: tuple[Sabotage, Pair]) -> str:
    return f"{case[0].__name__} of {case[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("case", FORESEEN, ids=named)
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_search_finds_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Sabotage, Pair], budget: tuple[float, float]
) -> None:
    sabotage, pair = case
    sabotage(monkeypatch)
    found = search(pair, *budget, count=HISTORIES, shrink=False)
    assert found.history is not None
    assert found.failures


def visits_of_one(user: str, count: int) -> tuple[Request, ...]:
    """Nobody else comes."""
    told = [request for request in Visits(3 * count, 0, 0).requests() if request.body.user == user]
    return tuple(told)


LEFT = Request(FORGET[0], FORGET[1].format(user="u0"))
NOBODY = [
    History(visits_of_one("u0", 20), "removed", "u0"),
    History((*visits_of_one("u0", 8), LEFT, Visits(8, 0, 0)), "removed", "u0"),
    *(
        History((Visits(7, 0, 0), *[STOCK] * waits, LEFT, Visits(8, 0, 0)), "removed", "u0")
        for waits in range(4)
    ),
]
"""Nobody else comes; somebody asks to be forgotten before, while and after users are added up."""


@pytest.mark.parametrize("pair", [USERS, SECURE], ids=str)
@pytest.mark.parametrize("place", range(len(NOBODY)))
def test_nobody_can_tell_whether_somebody_was_there(pair: Pair, place: int) -> None:
    attack = Attack(pair, *BUDGETS[0])
    assert [*Neighbours(attack).failures(NOBODY[place], Federation(attack))] == []


@pytest.mark.parametrize("case", PRESENCE, ids=named)
def test_who_was_there_shows_if_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Sabotage, Pair]
) -> None:
    sabotage, pair = case
    sabotage(monkeypatch)
    attack = Attack(pair, *BUDGETS[0])
    tester, mechanism = Neighbours(attack), Federation(attack)
    assert any([*tester.failures(history, mechanism)] for history in NOBODY)


OPEN = History((Visits(1, 0, 0), Copy(), Copy(), Visits(16, 0, 0), PutBack()), "withdrawn", "u0")
"""The second copy is made while users are added up for a slot, which the store sends afterwards."""


@pytest.mark.parametrize("heard", [True, False])
def test_a_slot_that_a_copy_has_begun_is_charged(monkeypatch: pytest.MonkeyPatch, heard: bool) -> None:
    """Found by a search. The global server may deny that it has heard of the slot."""
    if not heard:
        account = SlotsGlobal.account
        monkeypatch.setattr(SlotsGlobal, "account", lambda *given: account(*given)._replace(used=0))
    attack = Attack(USERS, *BUDGETS[0])
    assert [*Neighbours(attack).failures(OPEN, Federation(attack))] == []
