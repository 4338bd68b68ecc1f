"""File, environment, options; errors that name the key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fclub.config import Privacy
from fclub.errors import InvalidFile, InvalidSetting, PrivacyError, UnknownName
from fclub.policies.registry import make_policy
from fclub.privacy.noise import SeededNoise
from fclub.service.http.gate import Guard, hash_token, new_token
from fclub.service.nodes.parts import caution, family_of, local_node
from fclub.service.serve import local_app
from fclub.service.settings import (
    Http,
    LocalSettings,
    Model,
    load_settings,
    parse_assignments,
)

from .conftest import DIM, local_settings

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
        ({"http.tokens": ["plain"]}, "http.tokens"),
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
    file.write_text(FILE + '[model.parameters]\nlevel = "interactive"\nmargin = 2\n')
    environment = {"FCLUB_MODEL__PARAMETERS__EPSILON": "5", "FCLUB_MODEL__POLICY": "cdp-fclub-plus"}
    options = parse_assignments(["model.parameters.delta=1e-6", "model.parameters.centre=false"])
    model = load_settings(LocalSettings, file, options, environment).model
    expected = {"level": "interactive", "margin": 2, "epsilon": 5.0, "delta": 1e-6, "centre": False}
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
    """The paper's δ = 0.1 and its level stay the defaults of simulations."""
    model = load_settings(LocalSettings, None, {"store": "a.db", "model.dim": 3}, {}).model
    assert model.policy == "cdp-fclub-plus"
    live, printed = family_of(model), family_of(Model(policy="cdp-fclub-dc", dim=3))
    assert live.privacy == printed.privacy == Privacy(1.0, 1e-5)
    assert live.ledger(seeded=False).header.level == "transcript"
    for name in (model.policy, "cdp-fclub-dc"):
        simulated = make_policy(name).get_params()
        assert (simulated["epsilon"], simulated["delta"]) == (1.0, 0.1)
    own = family_of(Model(dim=3, parameters={"delta": 1e-6, "level": "interactive"}))
    assert own.privacy == Privacy(1.0, 1e-6)
    assert own.ledger(seeded=False).header.level == "interactive"


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


def test_tokens() -> None:
    token = new_token()
    guard = Guard(Http(tokens=[hash_token(token)]))
    header = f"Bearer {token}".encode()
    for _ in range(2):
        assert guard.allows(header, "application")
        assert not guard.allows(header, "admin"), "what proves one role does not prove the other"
        assert not guard.allows(b"", "application")
    with pytest.raises(InvalidSetting, match=r"http\.tokens"):
        Guard(Http())


def test_a_store_is_bound_to_its_name_and_model(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    local_node(LocalSettings(model=Model(dim=3), store=store, name="a")).store.close()
    for changed in (
        LocalSettings(model=Model(dim=4), store=store, name="a"),
        LocalSettings(model=Model(dim=3), store=store, name="b"),
    ):
        with pytest.raises(InvalidFile):
            local_node(changed)


def test_a_deployment_refuses_seeded_noise(tmp_path: Path) -> None:
    settings = LocalSettings(model=Model(policy="cdp-fclub-dc", dim=3), store=str(tmp_path / "s.db"))
    with pytest.raises(PrivacyError, match="exact noise"):
        local_node(settings, SeededNoise(np.random.default_rng(0)))
