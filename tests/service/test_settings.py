"""File, environment, options; errors that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.parts import present
from typer.main import get_command

from fclub.cli.local import app
from fclub.cli.main import COMMANDS
from fclub.config import Privacy
from fclub.errors import FclubError, InvalidSetting, OtherSettings, PrivacyError, UnknownName
from fclub.policies.registry import make_policy
from fclub.privacy.noise import SeededNoise
from fclub.service.nodes.parts import caution, family_of, global_node, local_node
from fclub.service.serve import global_app, local_app
from fclub.service.settings import (
    GlobalSettings,
    LocalSettings,
    Model,
    Nats,
    load_settings,
    parse_assignments,
)

from .conftest import DIM, HTTP, local_settings
from .federation import Pump

FILE = """
store = "a.db"
name = "file"
[model]
dim = 3
[http]
port = 1
"""


def test_options_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "local.toml"
    file.write_text(FILE)
    environment = {"FCLUB_NAME": "environment", "FCLUB_HTTP__PORT": "2", "OTHER": "x"}
    environment |= {"FCLUB_CACHE_DIR": "/cache", "FCLUB_DATA_DIR": "/data"}
    found = load_settings(LocalSettings, file, {"http.port": 3, "name": None}, environment)
    assert (found.store, found.name, found.http.port, found.model.dim) == ("a.db", "environment", 3, 3)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"http.port": "many"}, "http.port"),
        ({"http.port": 70000}, "http.port"),
        ({"model.dim": 0}, "model.dim"),
        ({"name": "no spaces"}, "name"),
        ({"http.keys": "keys"}, "http.keys"),
        ({"http.prot": 1}, "prot"),
        ({"colour": "red"}, "colour"),
        ({"store.x": 1}, "store"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, options: dict[str, object], key: str) -> None:
    file = tmp_path / "local.toml"
    file.write_text(FILE)
    with pytest.raises(InvalidSetting, match=key):
        load_settings(LocalSettings, file, options, {})


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        (LocalSettings, {}, "model.dim is missing: give --dim, or [model] dim in --config"),
        (
            LocalSettings,
            {"model.policy": "fclub-plus", "store": "s.db"},
            "model.dim is missing: give --dim, or [model] dim in --config",
        ),
        (LocalSettings, {"model.dim": 2}, "store is missing: give --store, or store in --config"),
        (
            GlobalSettings,
            {"model.dim": 2, "store": "g.db"},
            "servers is missing: name all local servers, as in --set 'servers=[\"north\"]'",
        ),
        (LocalSettings, {"http.prot": "1"}, "no key is called http.prot; did you mean http.port?"),
        (LocalSettings, {"modle.dim": "1"}, "no key is called modle; did you mean model?"),
        (
            LocalSettings,
            {"model.dim": 2, "store": "s.db", "feedback.wait": "1"},
            "no key is called feedback.wait; known: feedback.events, feedback.final_after, "
            "feedback.none_after, feedback.none_is, feedback.reward_is",
        ),
        (
            LocalSettings,
            {"model.dim": 2, "store": "s.db", "feedback.events": "abc"},
            "feedback.events must be a JSON object, as in '{\"epsilon\": 1}'",
        ),
        (
            LocalSettings,
            {"model.dim": 2, "store": "s.db", "model.reward": "[1, 5"},
            "model.reward must be a JSON list of two numbers, as in '[0, 1]'",
        ),
        (
            LocalSettings,
            {"model.dim": 2, "store": "s.db", "model.parameters": "epsilon"},
            "model.parameters must be a JSON object, as in '{\"epsilon\": 1}'",
        ),
        (LocalSettings, {"model": "no", "store": "s.db"}, "model: Expected `object`, got `str`"),
    ],
)
def test_errors_say_what_to_do(kind: Any, options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        load_settings(kind, None, options, {})
    assert str(error.value) == told


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InvalidSetting, match="store"):
        load_settings(LocalSettings, None, {"model.dim": 3}, {})


@pytest.mark.parametrize("text", ["[http", "\xff"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "local.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSetting, match=r"local\.toml"):
        load_settings(LocalSettings, file, {}, {})


def test_assignments() -> None:
    assert parse_assignments(["a.b=1", 'c=["x"]']) == {"a.b": "1", "c": ["x"]}
    with pytest.raises(InvalidSetting):
        parse_assignments(["nonsense"])


def test_parameters_of_the_policy_have_the_types_of_its_defaults(tmp_path: Path) -> None:
    file = tmp_path / "local.toml"
    file.write_text(FILE + '[model.parameters]\nlevel = "interactive"\nrelease_ratio = 2\n')
    environment = {"FCLUB_MODEL__PARAMETERS__EPSILON": "5", "FCLUB_MODEL__POLICY": "cdp-fclub-plus"}
    options = parse_assignments(["model.parameters.delta=1e-6", "model.parameters.centre=false"])
    model = load_settings(LocalSettings, file, options, environment).model
    expected = {
        "level": "interactive",
        "release_ratio": 2,
        "epsilon": 5.0,
        "delta": 1e-6,
        "centre": False,
    }
    assert model.parameters == expected
    assert type(model.parameters["epsilon"]) is float
    privacy = family_of(model).privacy
    assert privacy is not None
    assert (privacy.epsilon, privacy.delta) == (5.0, 1e-6)


@pytest.mark.parametrize("text", ["no", "banana"])
def test_what_is_no_truth_value_is_not_taken_for_true(tmp_path: Path, text: str) -> None:
    file = tmp_path / "local.toml"
    file.write_text(FILE)
    for options, environment in (
        ({"model.policy": "fclub-plus", "model.parameters.share": text}, {}),
        ({"model.policy": "fclub-plus"}, {"FCLUB_MODEL__PARAMETERS__SHARE": text}),
    ):
        with pytest.raises(InvalidSetting, match=r"model\.parameters\.share must be true or false"):
            load_settings(LocalSettings, file, options, environment)


def test_unknown_policies_and_parameters_are_refused() -> None:
    for model in (Model(policy="linucb", dim=3), Model(policy="none", dim=3)):
        with pytest.raises(InvalidSetting, match=r"model\.policy"):
            family_of(model)
    with pytest.raises(UnknownName, match="colour"):
        family_of(Model(dim=3, parameters={"colour": 1}))


def test_a_live_federation_promises_what_is_worth_a_promise() -> None:
    """The paper's δ = 0.1 stays the default of the printed policy in simulations."""
    model = load_settings(LocalSettings, None, {"store": "a.db", "model.dim": 3}, {}).model
    assert model.policy == "cdp-fclub-plus"
    live, printed = family_of(model), family_of(Model(policy="cdp-fclub-dc", dim=3))
    assert live.privacy == printed.privacy == Privacy(1.0, 1e-5)
    assert present(live.ledger(seeded=False)).header.level == "transcript"
    for name, delta in ((model.policy, 1e-5), ("cdp-fclub-dc", 0.1)):
        simulated = make_policy(name).get_params()
        assert (simulated["epsilon"], simulated["delta"]) == (1.0, delta)
    own = family_of(Model(dim=3, parameters={"delta": 1e-6, "level": "interactive"}))
    assert own.privacy == Privacy(1.0, 1e-6)
    assert present(own.ledger(seeded=False)).header.level == "interactive"


def test_only_the_printed_private_policy_needs_a_caution() -> None:
    text = caution(Model(policy="cdp-fclub-dc", dim=3, parameters={"delta": 0.1}))
    assert text is not None
    for word in ("random", "raw data", "δ is 0.1", "cdp-fclub-plus"):
        assert word in text
    for name in ("cdp-fclub-plus", "fclub-plus", "fclub-dc", "homo"):
        assert caution(Model(policy=name, dim=3)) is None


def test_a_server_with_the_printed_private_policy_says_what_to_expect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(policy="cdp-fclub-dc", dim=DIM)
    _, runner = local_app(local_settings(tmp_path, model=model))
    runner.node.store.close()
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert record.getMessage() == caution(model)


def test_the_help_promises_nothing_that_only_private_policies_keep() -> None:
    told = " ".join(str(get_command(app).help).split())
    for text in (told, COMMANDS["local"]):
        assert "at home" not in text
        assert "private polic" in text
    assert "exact sums, and the sum of a single visit is that visit" in told


EVENT = Model(dim=3, parameters={"unit": "event"})


@pytest.mark.parametrize(
    ("made", "changed", "told"),
    [
        (Model(dim=3), Model(dim=4), ["model.dim = 3, now it is 4"]),
        (
            Model(dim=3),
            Model(dim=3, constant=0.5),
            ["model.constant = not set, now it is 0.5"],
        ),
        (
            Model(dim=3),
            Model(dim=3, policy="fclub-plus"),
            ["model.policy = cdp-fclub-plus, now it is fclub-plus"],
        ),
        (
            EVENT,
            Model(dim=3, parameters={"unit": "event", "epsilon": 2.0}),
            ["model.parameters.epsilon = 1.0, now it is 2.0"],
        ),
        (
            Model(dim=3),
            Model(dim=2, parameters={"epsilon": 2.0}),
            ["model.dim = 3, now it is 2", "model.parameters.epsilon = 1.0, now it is 2.0"],
        ),
    ],
)
def test_a_store_of_other_settings_says_which_and_how_they_differ(
    tmp_path: Path, made: Model, changed: Model, told: list[str]
) -> None:
    store = str(tmp_path / "s.db")
    local_node(LocalSettings(model=made, store=store)).store.close()
    with pytest.raises(OtherSettings) as error:
        local_node(LocalSettings(model=changed, store=store))
    assert str(error.value) == f"{store} was made with {'; '.join(told)}"
    local_node(LocalSettings(model=made, store=store)).store.close()


def test_a_log_that_other_settings_lead_elsewhere_says_which(tmp_path: Path) -> None:
    """`ratio` says when a server looks for clusters: in the log it has to be the same."""
    made, changed = (Model(dim=3, policy="fclub-plus", parameters={"ratio": r}) for r in (1.5, 3.0))
    pump = Pump(tmp_path, made, 1)
    node = pump.locals["s0"]
    for number in range(60):
        shown = node.recommend(f"u{number % 4}", 0.5 * np.eye(3), ["a", "b", "c"])
        node.rewards.feedback(shown.id, float(number % 2))
        pump.run()
    pump.close()
    settings = LocalSettings(model=changed, name="s0", store=str(tmp_path / "s0.db"))
    with pytest.raises(OtherSettings, match=r"model\.parameters\.ratio = 1\.5, now it is 3\.0"):
        local_node(settings)
    same = LocalSettings(model=made, name="s0", store=str(tmp_path / "s0.db"))
    node = local_node(same)
    node.journal.snapshot()
    node.commit()
    node.store.close()
    local_node(settings).store.close()


def test_a_store_belongs_to_one_name(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    local_node(LocalSettings(model=Model(dim=3), store=store, name="a")).store.close()
    with pytest.raises(OtherSettings, match='name = "a", now it is "b"'):
        local_node(LocalSettings(model=Model(dim=3), store=store, name="b"))


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    store = tmp_path / "shpo" / "s.db"
    with pytest.raises(InvalidSetting, match=f"there is no folder {store.parent}"):
        local_node(LocalSettings(model=Model(dim=3), store=str(store)))
    assert list(tmp_path.iterdir()) == []


NOWHERE = "/nowhere/file"
BROKER = Nats(url="nats://127.0.0.1:1")
FAULTS: dict[str, dict[str, Any]] = {
    "http.tls_certificate": {"http": replace(HTTP, tls_certificate=NOWHERE, tls_key=NOWHERE)},
    "cannot use None": {"http": replace(HTTP, tls_key=NOWHERE)},
    "nats": {"nats": replace(BROKER, ca=NOWHERE)},
    "model.policy": {"model": Model(dim=DIM, policy="none")},
}


@pytest.mark.parametrize("told", FAULTS)
def test_a_start_that_fails_leaves_no_store(tmp_path: Path, told: str) -> None:
    """It would be bound to a name and a model that were perhaps a mistake."""
    common: dict[str, Any] = {"model": Model(dim=DIM), "store": str(tmp_path / "s.db"), "http": HTTP}
    given = common | {"nats": BROKER} | FAULTS[told]
    local = LocalSettings(**given)
    with pytest.raises(InvalidSetting, match=told):
        local_app(local)
    with pytest.raises(InvalidSetting, match=told):
        global_app(GlobalSettings(servers=["north"], **given))
    assert list(tmp_path.iterdir()) == []


ITEMS = {
    "fields": "id,a,b,c,d\ni,1,0\n",
    "last feature": "id,a,b,c,constant\ni,0,0,0,0.5\nj,0,0,0,0.4\n",
    "max_catalogue": "id,a,b,c,constant\ni,0,0,0,0.5\nj,0,0,0.5,0.5\nk,0,0.5,0,0.5\n",
}


@pytest.mark.parametrize("told", ITEMS)
def test_a_catalogue_with_a_fault_leaves_no_store(tmp_path: Path, told: str) -> None:
    file = tmp_path / "items.csv"
    file.write_text(ITEMS[told])
    model, http = Model(dim=DIM, constant=0.5), replace(HTTP, max_catalogue=2)
    with pytest.raises(FclubError, match=told):
        local_app(local_settings(tmp_path, model=model, http=http, catalogue=str(file)))
    assert not list(tmp_path.glob("local.db")) + list(tmp_path.glob("local.db-*"))


def test_names_of_servers_are_added_and_never_removed(tmp_path: Path) -> None:
    def names(*servers: str) -> list[str]:
        store = str(tmp_path / "g.db")
        node = global_node(GlobalSettings(model=Model(dim=3), store=store, servers=list(servers)))
        node.commit()
        node.store.close()
        return node.names

    assert names("north", "south") == ["north", "south"]
    assert names("west", "south", "north") == ["north", "south", "west"]
    with pytest.raises(OtherSettings, match="servers: south missing; one that has left"):
        names("north", "west")
    assert names("north", "south", "west") == ["north", "south", "west"]


@pytest.mark.parametrize("source", ["file", "environment", "option"])
def test_a_password_may_be_all_digits(tmp_path: Path, source: str) -> None:
    file = tmp_path / "local.toml"
    file.write_text(FILE + ("[nats]\nuser = 7\npassword = 123456\n" if source == "file" else ""))
    environment = {"FCLUB_NATS__PASSWORD": "123456"} if source == "environment" else {}
    options = parse_assignments(["nats.password=123456"] if source == "option" else [])
    assert load_settings(LocalSettings, file, options, environment).nats.password == "123456"


def test_a_deployment_refuses_seeded_noise(tmp_path: Path) -> None:
    settings = LocalSettings(model=Model(policy="cdp-fclub-dc", dim=3), store=str(tmp_path / "s.db"))
    with pytest.raises(PrivacyError, match="exact noise"):
        local_node(settings, SeededNoise(np.random.default_rng(0)))
