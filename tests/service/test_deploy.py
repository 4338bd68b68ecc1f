"""The files in deploy/ as far as they can be checked without a container engine."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from fclub.cli.main import COMMANDS
from fclub.paths import cache_root
from fclub.service.link.broker import find_broker, global_permissions, permissions
from fclub.service.settings import POLICY, PROMISE, GlobalSettings, LocalSettings, load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_broker_accepts_its_configuration() -> None:
    secrets = {f"{name}_PASSWORD": "x1" for name in ("GLOBAL", "NORTH", "SOUTH")}
    command = [find_broker(), "-t", "--config", str(DEPLOY / "nats.conf")]
    result = subprocess.run(command, env=secrets, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_broker_gives_the_permissions_that_the_tests_attack() -> None:
    expected = global_permissions(), permissions("north"), permissions("south")
    wanted = [subject for rules in expected for side in rules.values() for subject in side["allow"]]
    assert re.findall(r'"([^"]+)"', (DEPLOY / "nats.conf").read_text()) == wanted


def test_the_settings_are_valid_and_agree() -> None:
    secrets = {"FCLUB_NAME": "north", "FCLUB_NATS__USER": "north"}
    local = load_settings(LocalSettings, DEPLOY / "local.toml", {}, secrets)
    hub = load_settings(GlobalSettings, DEPLOY / "global.toml", {}, {})
    assert local.model == hub.model
    assert local.model.policy == POLICY
    assert local.model.parameters == PROMISE, "what is promised can be read in the file"
    assert local.name in hub.servers


def test_the_compose_file_runs_what_exists() -> None:
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    servers = tomllib.loads((DEPLOY / "global.toml").read_text())["servers"]
    assert set(compose["services"]) == {"nats", "global", *servers}
    for name, service in compose["services"].items():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (
                (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
            )
        if name != "nats":
            assert service["command"][0] in COMMANDS
            assert (DEPLOY.parent / service["build"]["dockerfile"]).exists()


def test_the_image_starts_a_known_command() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert json.loads(command)[0] in COMMANDS
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((DEPLOY.parent / path).exists() for path in source.split())


@pytest.mark.parametrize("command", ["local", "global"])
def test_the_units_run_known_commands(command: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / f"fclub-{command}.service")
    words = unit["Service"]["ExecStart"].split()
    assert words[1:] == [command, "--config", f"/etc/fclub/{command}.toml"]
    assert unit["Service"]["Restart"] == "always"


@pytest.mark.parametrize("file", ["Dockerfile", "fclub-local.service", "fclub-global.service"])
def test_compiled_kernels_are_kept_on_the_volume(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (variable,) = re.findall(r"\b(\w+)=/var/lib/fclub/cache", (DEPLOY / file).read_text())
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_root() == tmp_path
