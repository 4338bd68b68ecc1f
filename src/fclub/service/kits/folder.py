"""The folder of a federation: who is in it, and the files that broker and global server read.

Everything but keys is made anew from `federation.json` after each change, and then broker and global
server are told to read it again; neither restarts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from fclub.cohorts.members import MemberEntry, MemberList
from fclub.errors import InvalidFile, InvalidSetting
from fclub.paths import write_atomically
from fclub.service.kits.authority import KeyPair, issue, make_authority
from fclub.service.kits.kit import SECRET, Kit, read_kit, to_toml, write_kit
from fclub.service.link.broker import account_of, accounts
from fclub.service.link.channel import GLOBAL
from fclub.service.settings import GlobalSettings, Model, Name, load_settings
from fclub.service.store.lock import holder

ACTIVE, SUSPENDED, RETIRED = "active", "suspended", "retired"
BROKER = "broker"
RESERVED = {GLOBAL, BROKER}
RELOAD_SECONDS = 10.0
"""How long a broker may take to follow its configuration."""

ANSWER_SECONDS = 5.0


class Organisation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`accepted` are the generations of its certificate with which it may log in, `signers` the public
    keys with which what it says may be signed."""

    name: Name
    state: Literal["active", "suspended", "retired"] = "active"
    generation: int = 1
    accepted: tuple[int, ...] = (1,)
    signers: tuple[str, ...] = ()
    expires: str = ""


class Charter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`hub` is the global server, an organisation as all others are to the broker."""

    name: str
    address: str
    port: int
    model: dict[str, Any]
    hub: Organisation
    organisations: tuple[Organisation, ...] = ()
    members: MemberList

    def find(self, name: str) -> Organisation:
        for one in (self.hub, *self.organisations):
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.organisations) or "none yet"
        raise InvalidSetting(f"no organisation is called {name!r}; there are: {known}", name)

    def put(self, changed: Organisation) -> Charter:
        if changed.name == GLOBAL:
            return msgspec.structs.replace(self, hub=changed)
        kept = {one.name: one for one in self.organisations} | {changed.name: changed}
        return msgspec.structs.replace(self, organisations=tuple(kept.values()))

    def names(self, state: str) -> list[str]:
        return [one.name for one in self.organisations if one.state == state]


class Folder:
    """Reads and changes one; `told` says what became of the last change."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        file = self.path / "federation.json"
        try:
            self.charter = msgspec.json.decode(file.read_bytes(), type=Charter)
        except OSError as error:
            raise InvalidFile(f"{file}: {error.strerror}; fclub federation init makes one") from None
        except msgspec.DecodeError as error:
            raise InvalidFile(f"{file}: expected a federation: {error}") from None

    @classmethod
    def make(cls, path: Path, name: str, model: Model, address: str, port: int) -> Folder:
        """A federation without members; what is there already is never replaced."""
        if (path / "federation.json").exists():
            raise InvalidFile(f"{path} has a federation already; choose another folder")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = make_authority(f"federation {name}")
        write_secret(path / "ca.pem", authority.certificate)
        write_secret(path / "ca.key", authority.key)
        charter = Charter(
            name=name,
            address=address,
            port=port,
            model=_plain(model),
            hub=Organisation(name=GLOBAL),
            members=MemberList(name, 0, ()),
        )
        write_secret(path / "federation.json", _json(charter))
        folder = cls(path)
        folder.new_broker_certificate()
        write_secret(folder.path / "nats.conf", folder._broker_configuration())
        folder._save(folder._with_kit(folder.charter.hub))
        return folder

    @property
    def url(self) -> str:
        return f"tls://{self.charter.address}:{self.charter.port}"

    def kit_of(self, name: str) -> Path:
        return self.path / f"{name}.kit"

    @property
    def _authority(self) -> KeyPair:
        return KeyPair(*((self.path / f"ca.{end}").read_text() for end in ("pem", "key")))

    def new_broker_certificate(self) -> None:
        addresses = sorted({self.charter.address, "localhost", "127.0.0.1"})
        pair = issue(self._authority, BROKER, addresses)
        write_secret(self.path / "broker.pem", pair.certificate)
        write_secret(self.path / "broker.key", pair.key)

    def _broker_configuration(self) -> str:
        here, charter = self.path, self.charter
        try:
            socket.inet_pton(socket.AF_INET, charter.address)
            host = charter.address
        except OSError:
            host = "0.0.0.0"
        keys: dict[str, Any] = {
            "listen": f"{host}:{charter.port}",
            "pid_file": str(here / "nats.pid"),
            "jetstream": {"store_dir": str(here / "jetstream"), "sync_interval": "always"},
            "tls": {
                "cert_file": str(here / "broker.pem"),
                "key_file": str(here / "broker.key"),
                "ca_file": str(here / "ca.pem"),
                "verify_and_map": True,
            },
        }
        lines = [f"{key}: {json.dumps(value)}" for key, value in keys.items()]
        return "\n".join([f"# The broker of the federation {charter.name}.", *lines, *_INCLUDE, ""])

    def _with_kit(self, one: Organisation) -> Organisation:
        """Issue a certificate of the organisation's generation, and write it with all the rest."""
        charter = self.charter
        pair = issue(self._authority, user_name(one.name, one.generation))
        kit = Kit(
            federation=charter.name,
            name=one.name,
            generation=one.generation,
            url=self.url,
            certificate=pair.certificate,
            key=pair.key,
            ca=(self.path / "ca.pem").read_text(),
            model=charter.model,
        )
        write_kit(kit, self.kit_of(one.name))
        return msgspec.structs.replace(one, expires=pair.expires.isoformat())

    def _save(self, changed: Organisation) -> None:
        """Write what follows from a change: broker's accounts and member list."""
        self.charter = charter = self.charter.put(changed)
        write_secret(self.path / "accounts.conf", _accounts(charter))
        write_secret(self.path / "members.json", _json(charter.members))
        write_secret(self.path / "federation.json", _json(charter))
        for one in charter.organisations:
            if (file := self.kit_of(one.name)).exists():
                write_kit(msgspec.structs.replace(read_kit(file), members=charter.members), file)

    def add(self, name: str, entry: MemberEntry) -> None:
        """A new organisation with its kit; its public key goes into the next member list."""
        if name in RESERVED or any(one.name == name for one in self.charter.organisations):
            raise InvalidSetting(f"{name!r} is taken, now or earlier; choose another name", name)
        try:
            one = msgspec.convert({"name": name, "signers": [entry.key]}, Organisation)
        except msgspec.ValidationError as error:
            raise InvalidSetting(f"expected a name of letters, digits and -: {error}", name) from None
        self._propose([entry], [])
        self._save(self._with_kit(one))

    def remove(self, name: str) -> None:
        """Retire an organisation for good; its name is never given again."""
        one = self._member(name)
        if name in self.charter.members.by_name:
            self._propose([], [name])
        self._save(msgspec.structs.replace(one, state=RETIRED, accepted=(), signers=()))
        self.kit_of(name).unlink(missing_ok=True)

    def suspend(self, name: str) -> None:
        self._save(msgspec.structs.replace(self._member(name), state=SUSPENDED))

    def resume(self, name: str) -> None:
        self._save(msgspec.structs.replace(self._member(name), state=ACTIVE))

    def rotate(self, name: str, overlap: bool = False, entry: MemberEntry | None = None) -> None:
        """A new certificate, and public key if there is an `entry`.

        The earlier ones end at once, or with `overlap` at the next rotation.
        """
        if name == BROKER:
            self.new_broker_certificate()
            return
        one = self._member(name)
        following = one.generation + 1
        accepted = (one.generation, following) if overlap else (following,)
        signers = one.signers[-1:]
        if entry is not None:
            self._propose([entry], [])
            signers = (*(signers if overlap else ()), entry.key)
        one = msgspec.structs.replace(one, generation=following, accepted=accepted, signers=signers)
        self._save(self._with_kit(one))

    def _member(self, name: str) -> Organisation:
        one = self.charter.find(name)
        if one.state == RETIRED:
            raise InvalidSetting(f"{name} has left for good; add it under another name", name)
        return one

    def _propose(self, add: list[MemberEntry], remove: list[str]) -> None:
        members = self.charter.members.next(add, remove)
        self.charter = msgspec.structs.replace(self.charter, members=members)

    def global_settings(self) -> dict[str, Any]:
        """Dotted keys of the global server's settings that follow from this folder."""
        found = read_kit(self.kit_of(GLOBAL)).settings(self.kit_of(GLOBAL))
        del found["name"]
        names = {state: self.charter.names(state) for state in (ACTIVE, SUSPENDED, RETIRED)}
        return found | {
            "secure.members": str(self.path / "members.json"),
            "servers": names[ACTIVE] + names[SUSPENDED],
            "suspended": names[SUSPENDED],
            "retired": names[RETIRED],
            "signers": {
                one.name: list(one.signers) for one in self.charter.organisations if one.signers
            },
        }

    def reload(self) -> list[str]:
        """Let broker and global server read again what has changed; says what became of that."""
        return [self._reload_broker(), self._reload_global()]

    def _reload_broker(self) -> str:
        by_hand = "let it read its configuration again, twice: nats-server --signal reload"
        try:
            number = int((self.path / "nats.pid").read_text())
            if Path(f"/proc/{number}/comm").read_text().strip() != "nats-server":
                return f"broker: not running here; start it, or {by_hand}"
            os.kill(number, signal.SIGHUP)
            late = self._late()
            if late:
                return f"broker: has not followed within {RELOAD_SECONDS:g} s, see its log ({late})"
            # nats-server 2.15 connects the imports of an account that one reload has added only at the
            # next: until then its owner can log in, and reaches nothing.
            os.kill(number, signal.SIGHUP)
        except (OSError, ValueError):
            return f"broker: not running here; start it, or {by_hand}"
        return "broker: follows"

    def _late(self) -> str:
        """Log in with every kit until the broker does as it should; the first for which it does not."""
        deadline = time.monotonic() + RELOAD_SECONDS
        wrong = ""
        for one in (self.charter.hub, *self.charter.organisations):
            if not self.kit_of(one.name).exists():
                continue
            while admits(self.kit_of(one.name)) != (one.state == ACTIVE):
                if time.monotonic() > deadline:
                    wrong = wrong or one.name
                    break
                time.sleep(0.05)
        return wrong

    def _reload_global(self) -> str:
        store = self.path / "global.db"
        with suppress(InvalidSetting):
            file = self.path / "global.toml"
            store = Path(load_settings(GlobalSettings, file, self.global_settings()).store)
        number = holder(store)
        try:
            if number is not None:
                os.kill(number, signal.SIGHUP)
                return "global server: follows"
        except PermissionError:
            return f"global server: process {number} belongs to another user; send it SIGHUP"
        return "global server: not running here; start it, or send it SIGHUP"


_INCLUDE = ["include ./accounts.conf"]


def user_name(name: str, generation: int) -> str:
    """The common name of a certificate, by which the broker knows its owner: no name has a dot."""
    return f"{name}.{generation}"


def _accounts(charter: Charter) -> str:
    """One account for each organisation that may log in; the global server's is the hub."""
    found = accounts(
        {
            one.name: {"user": f"CN={user_name(one.name, one.generation)}"}
            for one in (charter.hub, *charter.organisations)
            if one.state == ACTIVE
        }
    )
    for one in (charter.hub, *charter.organisations):
        if one.state == ACTIVE:
            account = found["hub" if one.name == GLOBAL else account_of(one.name)]
            rights = account["users"][0]["permissions"]
            account["users"] = [
                {"user": f"CN={user_name(one.name, generation)}", "permissions": rights}
                for generation in one.accepted
            ]
    return f"accounts: {json.dumps(found, indent=1)}\n"


def admits(kit: Path) -> bool:
    """Whether the broker lets the owner of a kit in, over TLS with its certificate."""
    found = read_kit(kit)
    host, _, port = found.url.removeprefix("tls://").rpartition(":")
    context = ssl.create_default_context(cadata=found.ca)
    context.load_cert_chain(kit)
    said = json.dumps({"verbose": False, "pedantic": False, "name": "fclub federation"})
    try:
        with socket.create_connection((host, int(port)), ANSWER_SECONDS) as plain:
            plain.recv(4096)
            with context.wrap_socket(plain, server_hostname=host) as secured:
                secured.sendall(f"CONNECT {said}\r\nPING\r\n".encode())
                heard = b""
                while b"\r\n" not in heard:
                    some = secured.recv(4096)
                    if not some:
                        return False
                    heard += some
    except OSError:
        return False
    return heard.startswith(b"PONG")


def _plain(model: Model) -> dict[str, Any]:
    """All keys of a model that have a value; members have to agree on them."""
    found: Mapping[str, Any] = msgspec.to_builtins(model)
    return {key: value for key, value in found.items() if value is not None}


def _json(thing: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(thing)).decode() + "\n"


def write_secret(path: Path, text: str) -> None:
    with write_atomically(path, SECRET) as file:
        file.write(text.encode())


def global_configuration(store: Path) -> str:
    """What an operator may edit: where the global server keeps its data, and more of its settings."""
    head = "# Settings of the global server; model, broker and members follow from federation.json.\n"
    return head + to_toml({"store": str(store)})
