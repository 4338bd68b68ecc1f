"""The population's slots live: by the clock, equal to the simulation, the same after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parts import is_a

from fclub.core.lattice import Whole
from fclub.core.types import Floats
from fclub.environments.synthetic import Synthetic
from fclub.errors import InvalidSetting, OtherSettings
from fclub.policies.federated.families import FederatedPolicy
from fclub.policies.registry import make_policy
from fclub.privacy.noise import DiscreteNoise
from fclub.privacy.plan import Plan, make_plan
from fclub.protocol.exchanges.slots import SlotsLocal
from fclub.protocol.servers import LocalServer
from fclub.service.nodes.handshake import OTHER_RULES, REFUSED
from fclub.service.nodes.parts import local_node, settings_of
from fclub.service.settings import LocalSettings, Model, load_settings
from fclub.service.store.books import read_books

from .federation import Pump, model_of, name_of, register, states

DIM = 4
START, DAY = 1_800_000_000.0, 86_400.0


class Kept(DiscreteNoise):
    """Noise that is drawn once and given again, in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Whole] = []
        self.again: Iterator[Whole] | None = None

    def integers(self, deviations: Floats) -> Whole:
        if self.again is not None:
            return next(self.again)
        self.drawn.append(super().integers(deviations))
        return self.drawn[-1]


def world(servers: int, users: int, seed: int = 1) -> Synthetic:
    environment = Synthetic(
        users=users, clusters=2, servers=servers, dim=DIM, items=5, placement="spread"
    )
    environment.start(seed)
    return environment


def a_plan(servers: int, users: int, **told: Any) -> Plan:
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "dim": DIM, "secure": False}
    given |= {"visits": (0.6, 1.2, 2.0, 3.0), "start": START, "seconds_per_visit": DAY}
    return make_plan(**(given | {"users": users, "members": servers} | told))


def federation(path: Path, environment: Synthetic, plan: Plan, noise: Kept | None = None) -> Pump:
    told = {"plan": plan.encode().decode(), "level": plan.level}
    model = model_of(environment, "cdp-fclub-plus", **told)
    pump = Pump(path, model, plan.members, noise)
    register(pump, environment)
    pump.run()
    return pump


def visit(pump: Pump, environment: Synthetic) -> int:
    user, items = environment.visit()
    node = pump.locals[f"s{environment.server_of[user]}"]
    decision = node.recommend(name_of(user), items, [str(k) for k in range(len(items))])
    pump.commit(node)
    node.rewards.feedback(decision.id, environment.feedback(decision.index).reward)
    pump.commit(node)
    return decision.index


def play(pump: Pump, environment: Synthetic, plan: Plan, rounds: int) -> list[int]:
    """Slots come when the simulation's clock, the number of visits, has them."""
    choices, following = [], 0
    for count in range(1, rounds + 1):
        choices.append(visit(pump, environment))
        while following < plan.releases and count >= round(plan.users * plan.visits[following]):
            pump.tick(plan.begins[following])
            pump.tick(plan.ends[following])
            following += 1
    return choices


def simulated(
    environment: Synthetic, plan: Plan, noise: Kept, shown: list[int]
) -> tuple[Any, list[int]]:
    """The same visits and the same noise in a simulation; also what it would have shown."""
    policy: Any = make_policy("cdp-fclub-plus", plan=plan.encode().decode(), level=plan.level)
    assert isinstance(policy, FederatedPolicy)
    policy.start(environment.problem, environment.server_of, seed=0)
    noise.again = iter(noise.drawn)
    for server in policy.servers.values():
        is_a(SlotsLocal, is_a(LocalServer, server).exchange).noise = noise
    choices = []
    for index in shown:
        user, items = environment.visit()
        choices.append(policy.recommend(user, items))
        policy.update(user, items[index], environment.feedback(index).reward)
    return policy, choices


LEVELS = pytest.mark.parametrize("level", ["transcript", "interactive"])
PEOPLE = tuple(f"learner.types.crowd.users.{name}" for name in ("gram", "moment", "counts"))
FROM_TYPES = "study.", "learner.types.", "learner.lead"
"""What servers learn at home: live, each begins phases by a clock of its own."""


def same_as_simulated(path: Path, servers: int, users: int, rounds: int, level: str) -> Pump:
    """Whatever servers learn at home, they release the same; without that they show the same."""
    environment, plan, noise = world(servers, users), a_plan(servers, users, level=level), Kept()
    pump = federation(path, environment, plan, noise)
    choices = play(pump, environment, plan, rounds)
    policy, expected = simulated(world(servers, users), plan, noise, choices)
    if level == "interactive":
        assert choices == expected
    hub: Any = pump.hub.server
    assert hub.exchange.transcript.releases == policy.federation.hub.exchange.transcript.releases
    assert len(hub.exchange.transcript.releases) == plan.releases
    for number, node in enumerate(pump.locals.values()):
        ours, mine = node.server.state()
        theirs, yours = policy.servers[number].state()
        assert mine["exchange"] == yours["exchange"]
        for key in ours:
            if level == "interactive" or key in PEOPLE or not key.startswith(FROM_TYPES):
                np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)
        assert not node.server.status().outlook.alarm
    return pump


@LEVELS
def test_live_servers_equal_the_simulation_of_the_same_visits(tmp_path: Path, level: str) -> None:
    pump = same_as_simulated(tmp_path, servers=3, users=15, rounds=50, level=level)
    for name in pump.names:
        assert pump.locals[name].books.messages() == {"release": 4}
        assert pump.locals[name].books.unaccounted() == 0
        assert pump.locals[name].exhausted
    pump.close()
    ledger = read_books(tmp_path / "s0.db")
    assert ledger.spent(1e-5) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
@LEVELS
def test_six_servers_of_a_hundred_users_equal_the_simulation(tmp_path: Path, level: str) -> None:
    same_as_simulated(tmp_path, servers=6, users=600, rounds=2000, level=level).close()


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_restart_between_slots_changes_nothing(tmp_path: Path, snapshot: bool) -> None:
    environment, plan = world(2, 8), a_plan(2, 8)
    pump = federation(tmp_path, environment, plan)
    for slot in range(3):
        for _ in range(6):
            visit(pump, environment)
        pump.tick(plan.begins[slot])
        before = states(pump)
        pump.restart(snapshot)
        assert states(pump) == before, "also what had arrived at the global server in an open slot"
        pump.tick(plan.ends[slot])
        hub: Any = pump.hub.server
        assert len(hub.exchange.transcript.releases) == slot + 1
    pump.close()


def test_a_server_that_was_away_leaves_a_slot_out_and_hears_of_it_later(tmp_path: Path) -> None:
    environment, plan = world(3, 9), a_plan(3, 9)
    pump = federation(tmp_path, environment, plan)
    for _ in range(9):
        visit(pump, environment)
    pump.away.add("s1")
    pump.locals["s1"].sessions.connected()
    pump.tick(plan.begins[0])
    pump.tick(plan.ends[0])
    pump.come_back("s1")
    absent: Any = pump.locals["s1"].server
    assert pump.locals["s1"].books.messages() == {}, "it has asked and got no answer in time"
    assert absent.exchange.transcript.releases[0].servers == 2
    assert absent.exchange.ledger.streams == {}, "at no cost"
    pump.tick(plan.begins[1])
    pump.tick(plan.ends[1])
    assert absent.exchange.transcript.releases[1].servers == 3
    pump.close()


def test_a_message_after_its_slot_is_lost_and_no_offence(tmp_path: Path) -> None:
    environment, plan = world(3, 9), a_plan(3, 9)
    pump = federation(tmp_path, environment, plan)
    for slot in range(2):
        pump.time = plan.begins[slot]
        pump.locals["s0"].tick()
        frames = pump.commit(pump.locals["s0"])
        assert len(frames) == 1
        pump.tick(plan.begins[slot])
        pump.tick(plan.ends[slot])
        pump.hub.receive("s0", frames[0][1])
        pump.run()
    peer = pump.hub.peers["s0"]
    assert (peer.offences, peer.quarantined) == (0, False)
    hub: Any = pump.hub.server
    assert [one.servers for one in hub.exchange.transcript.releases] == [2, 2]
    pump.close()


def test_a_copy_of_a_store_uses_no_slot_again(tmp_path: Path) -> None:
    environment, plan = world(2, 8), a_plan(2, 8)
    pump = federation(tmp_path, environment, plan)
    pump.locals["s0"].journal.snapshot()
    pump.run()
    pump.locals["s0"].store.close()
    old = (tmp_path / "s0.db").read_bytes()
    pump.locals["s0"] = pump.open_local("s0")
    pump.run()
    pump.tick(plan.begins[0])
    pump.locals["s0"].store.close()
    for rest in tmp_path.glob("s0.db*"):
        rest.unlink()
    (tmp_path / "s0.db").write_bytes(old)
    pump.time += 1.0
    pump.locals["s0"] = pump.open_local("s0")
    pump.run()
    pump.tick(plan.begins[0] + 2.0)
    copy: Any = pump.locals["s0"]
    assert copy.books.messages() == {}
    assert copy.server.exchange.ledger.streams["s0"].sequence == 1, "presumed to have left"
    pump.tick(plan.ends[0])
    pump.tick(plan.begins[1])
    assert copy.books.messages() == {"release": 1}
    pump.close()


@pytest.mark.parametrize("later", [100.0, 30 * DAY])
def test_a_copy_that_was_adding_users_up_sends_nothing(tmp_path: Path, later: float) -> None:
    """The slot is charged before anything else is done, also before what was under way goes on."""
    environment, plan = world(2, 8), a_plan(2, 8)
    pump = federation(tmp_path, environment, plan)
    for _ in range(8):
        visit(pump, environment)
    node = pump.locals["s0"]
    pump.time = plan.begins[0]
    assert node.tick()
    node.store.write(node.take().statements)
    old = {file: file.read_bytes() for file in tmp_path.glob("s0.db*")}
    pump.run()
    assert node.books.messages() == {"release": 1}
    node.store.close()
    for file in tmp_path.glob("s0.db*"):
        file.unlink()
    for file, data in old.items():
        file.write_bytes(data)
    pump.time += later
    copy: Any = pump.open_local("s0")
    assert copy.server.busy, "the work that was under way when the copy was made"
    pump.locals["s0"] = copy
    pump.run()
    assert copy.books.messages() == {}
    assert copy.server.exchange.ledger.streams["s0"].sequence >= 1
    pump.close()


def test_servers_with_different_plans_do_not_agree(tmp_path: Path) -> None:
    environment, plan = world(2, 8), a_plan(2, 8)
    pump = federation(tmp_path, environment, plan)
    other = model_of(environment, "cdp-fclub-plus", plan=a_plan(2, 9).encode().decode())
    pump.locals["s1"].store.close()
    (tmp_path / "other").mkdir()
    settings = LocalSettings(model=other, name="s1", store=str(tmp_path / "other" / "s1.db"))
    pump.locals["s1"] = local_node(settings, clock=lambda: pump.time)
    pump.locals["s1"].sessions.connected()
    pump.run()
    assert pump.locals["s1"].sessions.handshake.standing == OTHER_RULES
    assert pump.locals["s1"].sessions.handshake.standing.state == REFUSED
    assert pump.hub.members.troubles()["s1"] == "it has another model or another plan"
    pump.away.add("s1")
    pump.tick(plan.begins[0])
    pump.tick(plan.ends[0])
    hub: Any = pump.hub.server
    assert hub.exchange.transcript.releases[0].servers == 1
    pump.close()


def test_a_store_takes_one_plan_and_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan = a_plan(1, 8)
    plan.write(file)
    store = str(tmp_path / "local.db")
    alone = {"store": store, "model.policy": "cdp-fclub-plus", "model.dim": DIM}
    local_node(load_settings(LocalSettings, None, alone, {})).store.close()
    given = load_settings(LocalSettings, None, alone | {"model.parameters": {"plan": str(file)}}, {})
    local_node(given).store.close()
    file.unlink()
    assert settings_of(Path(store)).model == given.model, "the plan is kept in the store"
    with pytest.raises(OtherSettings, match=f"the plan {plan.digest[:16]}, now it is not set"):
        local_node(load_settings(LocalSettings, None, alone, {}))
    with pytest.raises(InvalidSetting, match="there is no plan at"):
        load_settings(LocalSettings, None, alone | {"model.parameters": {"plan": str(file)}}, {})
    other = Model(policy="cdp-fclub-plus", dim=DIM, parameters={"plan": a_plan(1, 9).encode().decode()})
    with pytest.raises(OtherSettings, match=r"model.parameters.plan = the plan"):
        local_node(LocalSettings(model=other, store=store))
