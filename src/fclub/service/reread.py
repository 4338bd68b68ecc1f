"""What SIGHUP does: certificates and members are read again while the server goes on."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fclub.cohorts.members import read_members
from fclub.errors import InvalidFile, InvalidSetting
from fclub.service.http.gate import Gate
from fclub.service.link.signed import SignedWire
from fclub.service.nodes.global_node import GlobalNode
from fclub.service.nodes.parts import membership_of, signers_of
from fclub.service.nodes.runner import Runner
from fclub.service.settings import GlobalSettings, Http, LocalSettings

Known = LocalSettings | GlobalSettings

REREAD = {
    "http.tls_certificate",
    "http.tls_key",
    "nats.ca",
    "nats.certificate",
    "nats.key",
    "servers",
    "suspended",
    "retired",
    "signers",
}
"""Keys whose new values count at once; certificates, for connections that begin from now on."""


class Reread:
    """Reads the settings again; where they are wrong, all stays as it was."""

    def __init__(self, settings: Known, load: Callable[[], Known], gate: Gate, runner: Runner) -> None:
        self.settings, self._load = settings, load
        self._gate, self._runner, self._monitor = gate, runner, runner.monitor
        self.context: ssl.SSLContext | None = None

    def __call__(self) -> None:
        try:
            found = self._load()
            self._check_members(found)
            cohort = self._runner.node.cohort
            listed = None if cohort is None else read_members(Path(found.secure.members))
            if self.context is not None:
                renew(self.context, found.http)
            if isinstance(self._runner.wire, SignedWire):
                self._runner.wire.renew(found.nats)
        except (InvalidSetting, InvalidFile, OSError) as error:
            self._monitor.event("settings not read again", logging.ERROR, error=str(error))
            return
        if cohort is not None and listed is not None:
            cohort.accept(listed)
        self._gate.keys.look()
        self._follow(found)
        self._monitor.event("keys and certificates read again")
        before, now = _flat(self.settings), _flat(found)
        waiting = sorted(key for key in before | now if before.get(key) != now.get(key))
        waiting = [key for key in waiting if key not in REREAD]
        if waiting:
            self._monitor.event("settings that need a restart", logging.WARNING, keys=waiting)

    def _check_members(self, found: Known) -> None:
        node = self._runner.node
        if isinstance(found, GlobalSettings) and isinstance(node, GlobalNode):
            signers_of(found)
            node.members.check(membership_of(found))

    def _follow(self, found: Known) -> None:
        """Servers join, pause, return or leave; every one of them is told apart in the log."""
        node, wire, now = self._runner.node, self._runner.wire, self.settings
        if not (isinstance(found, GlobalSettings) and isinstance(now, GlobalSettings)):
            return
        assert isinstance(node, GlobalNode)
        node.members.follow(membership_of(found))
        if isinstance(wire, SignedWire):
            wire.follow(found.servers, found.retired, found.signers)
        self._runner.wake()
        for kind, before, after in (
            ("joined the federation", now.servers, found.servers),
            ("suspended", now.suspended, found.suspended),
            ("resumed", found.suspended, [name for name in now.suspended if name in found.servers]),
            ("left the federation", now.retired, found.retired),
        ):
            for name in after:
                if name not in before:
                    self._monitor.event(kind, server=name)
        self.settings = msgspec.structs.replace(
            now,
            servers=found.servers,
            suspended=found.suspended,
            retired=found.retired,
            signers=found.signers,
        )


def renew(context: ssl.SSLContext, http: Http) -> None:
    """Load a certificate into a context in use, after a trial: half a pair would break it."""
    for trial in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        try:
            trial.load_cert_chain(str(http.tls_certificate), http.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise unusable(http, error) from None


def unusable(http: Http, error: Exception) -> InvalidSetting:
    pair = f"{http.tls_certificate} and {http.tls_key}"
    return InvalidSetting(f"http.tls_certificate: cannot use {pair}: {error}")


def _flat(settings: Known) -> dict[str, Any]:
    """Every key of a table as `table.key`."""
    found: dict[str, Any] = {}
    for key, value in msgspec.to_builtins(settings).items():
        inner = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {}
        found |= inner or {key: value}
    return found
