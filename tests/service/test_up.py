"""One command, everything running: the end-to-end test, with the client and the example."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.conftest import Command

from fclub import AsyncClient, Client, Outcome
from fclub.cli.up import start_environment, with_plan
from fclub.client import Recommendation
from fclub.environments.world import HALF
from fclub.errors import RequestFailed
from fclub.privacy.plan import read_plan
from fclub.service.nodes.parts import check_store, family_of
from fclub.service.settings import LocalSettings, Model
from fclub.visitors import Diary, Earnings, make_rivals

from .conftest import TOKEN, fclub, offer, wait_for


def test_up_makes_a_plan_once_for_a_policy_that_needs_one(tmp_path: Path) -> None:
    model = Model(policy="cdp-fclub-plus", dim=4, parameters={"level": "interactive"})
    made = with_plan(model, tmp_path, servers=3, users=100, rate=50.0, visits=20.0)
    plan = read_plan(Path(str(made.parameters["plan"])))
    assert (plan.members, plan.level, plan.secure, plan.tolerance) == (3, "interactive", True, 0.0)
    assert plan.times[0] == pytest.approx(12.0)
    assert plan.window >= 6.0, "time enough for a secure sum"
    assert made == with_plan(model, tmp_path, servers=3, users=100, rate=50.0, visits=20.0)
    assert family_of(made).price() is not None
    for other in (Model(policy="fclub-plus", dim=4), made):
        assert with_plan(other, tmp_path, servers=3, users=100, rate=50.0, visits=20.0) is other


def alone(visits: int) -> dict[str, dict[str, float]]:
    """What the rivals of `up --servers 2 --users 8` earn when nothing interrupts them."""
    tally = Earnings("none")
    for rival in make_rivals(partial(start_environment, "synthetic", {"users": 8, "servers": 2}, 0), 0):
        for _ in range(visits):
            tally.add({rival.name: rival.visit()})
    return {name: asdict(earned) for name, earned in tally.policies.items()}


@pytest.mark.slow
def test_a_federation_in_one_command(tmp_path: Path) -> None:
    def up(visits: int, seed: int = 0) -> dict[str, Any]:
        words = f"up --servers 2 --users 8 --rate 200 --visits {visits} --seed {seed} --dir {tmp_path}"
        process = fclub(*words.split(), "--json")
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        told: dict[str, Any] = json.loads(output)
        return told

    assert up(120)["visits"] == 120
    again = up(80)
    assert again["visits"] == 200
    assert again["rivals"] == alone(200)
    total = 0
    for name in ("s0", "s1"):
        settings = LocalSettings(
            model=Model(dim=10, constant=HALF, parameters={"plan": str(tmp_path / "plan.json")}),
            name=name,
            store=str(tmp_path / f"{name}.db"),
        )
        summary = check_store(settings)
        total += summary["observations"]
    assert total == 200
    other = up(5, seed=1)
    assert (other["visits"], other["rivals"]) == (5, {})


def test_a_folder_remembers_its_visitors(tmp_path: Path) -> None:
    """Rivals are shown while they have met every visit that the federation has learned from."""
    setting = {"policy": "fclub-dc", "seed": 0}
    diary = Diary.open(tmp_path, setting, 2, learned=False)
    diary.tally.add({"fclub-dc": Outcome(1.0, 0.25), "linucb": Outcome(0.0, 0.5)})
    diary.save(tmp_path)
    again = Diary.open(tmp_path, setting, 2, learned=True)
    assert again == diary
    assert again.compared
    other = Diary.open(tmp_path, setting | {"seed": 1}, 2, learned=True)
    assert (other.tally.visits, other.compared) == (0, False)
    other.save(tmp_path)
    assert not Diary.open(tmp_path, setting, 2, learned=True).compared


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    process = fclub(*f"up --servers 1 --users 4 --dir {tmp_path}".split(), start_new_session=True)
    addresses = tmp_path / "servers.json"
    wait_for(addresses.exists)
    assert addresses.stat().st_mode & 0o077 == 0, "it holds the token"
    assert set(json.loads(addresses.read_text())) == {"global", "s0"}
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (0, 1, 130)
    assert not addresses.exists()
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


@pytest.mark.slow
def test_a_federation_serves_a_catalogue_and_learns_from_a_log(tmp_path: Path) -> None:
    """Users of the log are spread over the servers, which offer all items by name."""
    items, log, home = tmp_path / "items.csv", tmp_path / "log.csv", tmp_path / "home"
    items.write_text("id,x1,constant\nAlien,0.7,0.7\nBrazil,-0.7,0.7\n")
    likes = [
        f"user-{k},{film},{int(film == 'Alien')}" for k in range(20) for film in ("Alien", "Brazil")
    ]
    log.write_text("\n".join(["user,item,reward", *likes]))
    process = fclub(*f"up --catalogue {items} --servers 2 --dir {home}".split(), start_new_session=True)
    addresses = home / "servers.json"
    wait_for(addresses.exists)
    told = fclub("import", str(log), "--dir", str(home))
    assert told.communicate(timeout=120)[0] == "40 learned, 0 known, 0 refused\n"
    found = json.loads(addresses.read_text())
    people = 0
    for name in ("s0", "s1"):
        with Client(found[name]["url"], found[name]["token"]) as client:
            people += sum(one["users"] for one in client.request("GET", "/v1/clusters"))
            (shown,) = client.request("POST", "/v1/recommend", {"user": "ann", "count": 1})["shown"]
            assert shown["item"] == "Alien"
    assert people == 20
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "share nothing yet" in said
    assert "--set cdp-fclub-plus.plan=FILE" in said


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["global", "s0"])
def test_a_server_that_dies_is_named(tmp_path: Path, victim: str) -> None:
    process = fclub(*f"up --servers 1 --users 4 --dir {tmp_path}".split(), start_new_session=True)
    wait_for((tmp_path / "servers.json").exists)
    holder = (tmp_path / f"{victim}.db.lock").read_text().split()
    os.kill(int(holder[1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    last = errors.splitlines()[-1]
    assert process.returncode == 1
    assert last.startswith(f"fclub: {victim} was killed by signal 9, see {tmp_path / victim}.log")


def test_the_client_tells_what_went_wrong(client: httpx.Client) -> None:
    with Client(str(client.base_url), TOKEN) as ours:
        items = {item["id"]: item["features"] for item in offer(np.random.default_rng(0))}
        shown = ours.recommend("ann", items)
        assert shown.item in items
        assert ours.feedback(shown.decision, 1.0)
        assert not ours.feedback(shown.decision, 1.0)
        with pytest.raises(RequestFailed, match="another reward") as error:
            ours.feedback(shown.decision, 0.0)
        assert error.value.status == 409
    with Client(str(client.base_url), "wrong") as stranger, pytest.raises(RequestFailed, match="401"):
        stranger.recommend("ann", items)
    with Client("http://127.0.0.1:1", TOKEN, retries=1) as nobody, pytest.raises(RequestFailed) as gone:
        nobody.recommend("ann", items)
    assert gone.value.status == 0


def test_the_client_needs_no_block_and_takes_batches(client: httpx.Client) -> None:
    ours = Client(str(client.base_url), TOKEN)
    items = {item["id"]: item["features"] for item in offer(np.random.default_rng(0))}
    ann, nobody, bob = ours.recommend_batch([("ann", items), ("é" * 100, items), ("bob", items)])
    assert isinstance(ann, Recommendation)
    assert isinstance(bob, Recommendation)
    assert isinstance(nobody, RequestFailed)
    assert nobody.status == 422
    told = ours.feedback_batch({ann.decision: 1.0, "unheard of": 0.5, bob.decision: 0.0})
    assert [told[ann.decision], told[bob.decision]] == [True, True]
    assert isinstance(told["unheard of"], RequestFailed)
    assert ours.feedback_batch({ann.decision: 1.0}) == {ann.decision: False}
    ours.close()
    with pytest.raises(RuntimeError, match="closed"):
        ours.recommend("ann", items)


async def _visit(url: str, items: dict[str, list[float]]) -> bool:
    ours = AsyncClient(url, TOKEN)
    shown = await ours.recommend("cyd", items)
    told = await ours.feedback_batch({shown.decision: 1.0})
    await ours.close()
    return told == {shown.decision: True}


def test_the_client_for_asyncio(client: httpx.Client) -> None:
    items = {item["id"]: item["features"] for item in offer(np.random.default_rng(0))}
    assert asyncio.run(_visit(str(client.base_url), items))


@pytest.mark.parametrize("name", ["local", "global", "up"])
def test_help_shows_an_example(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    shown = command(name, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Example:" in shown.stdout
