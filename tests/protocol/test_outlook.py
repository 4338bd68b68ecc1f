"""What servers tell people: when they send next, and how sure they are of their clusters."""

from __future__ import annotations

import numpy as np
import pytest
from tests.protocol.test_seam import HALF, Live

from fclub.core.types import Matrix
from fclub.parameters import Parameter
from fclub.privacy.noise import SeededNoise
from fclub.protocol.families import make_family
from fclub.protocol.interfaces.family import Place, Shape
from fclub.protocol.interfaces.overview import CHANGE, CLUSTER, NOTHING, OBSERVATIONS, TYPE, Outlook
from fclub.protocol.link import InProcessLink
from fclub.protocol.servers import LocalServer

SHAPE = Shape(3, clusters=8, constant=HALF)


class Deaf(InProcessLink):
    """Takes messages, answers none."""

    def from_local(self, server: int, message: object) -> None: ...


def local(name: str, **given: Parameter) -> LocalServer:
    """A live server whose global server never answers."""
    family = make_family(name, SHAPE, given)
    link, rng = Deaf(family.decode), np.random.default_rng(0)
    ledger = family.ledger(seeded=True)
    place = Place("s", link.uplink(0), SeededNoise(rng), ledger, rng)
    return family.local_server(place, family.users(0), live=True)


def items() -> Matrix:
    return np.array([[HALF, 0.0, HALF], [0.0, HALF, HALF]])


def visit(server: LocalServer, row: int) -> None:
    while row >= len(server.counts):
        server.add_user()
    server.observe(row, items()[server.recommend(row, items())], 1.0)


@pytest.mark.parametrize("name", ["fclub-dc", "cdp-fclub-dc", "homo"])
def test_the_printed_algorithm_sends_when_an_estimate_changes(name: str) -> None:
    assert local(name).status().outlook == Outlook(CHANGE)


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-homo"])
def test_a_clock_tells_at_how_many_observations(name: str) -> None:
    live = Live(name)
    live.visit(60)
    server = live.locals[0]
    outlook = server.status().outlook
    assert (outlook.what, outlook.now) == (OBSERVATIONS, server.counts.sum())
    assert outlook.at is not None
    assert outlook.at > outlook.now
    for one in server.overview():
        assert one.kind == (TYPE if name == "fclub-plus" else CLUSTER)
        assert one.known is not None
        assert 0.0 < one.known < 1.0


def test_a_server_of_types_waits_for_enough_visits() -> None:
    server = local("fclub-plus")
    for row in range(40):
        visit(server, row)
    assert server.status().outlook == Outlook(OBSERVATIONS, 40, 4.0)
    types = server.overview()
    assert {one.kind for one in types} == {TYPE}
    assert sum(one.weight or 0.0 for one in types) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["fclub-plus", "cdp-fclub-plus"])
def test_a_server_that_shares_nothing_says_so(name: str) -> None:
    server = local(name, share=False)
    visit(server, 0)
    assert server.status().outlook == Outlook(NOTHING)


@pytest.mark.parametrize("name", ["fclub-dc", "fclub-plus", "cdp-homo"])
def test_who_has_released_nothing_has_paid_nothing(name: str) -> None:
    live = Live(name)
    assert live.hub.paid_by(0) == 0.0
    live.visit(60)
    assert live.hub.paid_by(0) == (live.hub.phase if name == "fclub-dc" else 1.0)
