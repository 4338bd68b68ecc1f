"""One file with all that one organisation needs to take part.

A kit is TOML: settings of a local server, certificates and a key as PEM texts, and a proposed member
list. OpenSSL finds PEM blocks in any text, so the file itself is what `nats.ca`, `nats.certificate` and
`nats.key` name; the server's own certificate is its first block. It opens the organisation's account at
the broker, so only its owner may read it. It holds no signing key: `fclub identity` makes that at home.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from fclub.cohorts.members import MemberList
from fclub.errors import InvalidFile
from fclub.paths import write_atomically
from fclub.service.kits.authority import KeyPair, expiry

SECRET = 0o600


class Kit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`generation` counts the certificates that this organisation has had."""

    federation: str
    name: str
    generation: int
    url: str
    certificate: str
    key: str
    ca: str
    model: dict[str, Any]
    members: MemberList | None = None

    @property
    def expires(self) -> datetime:
        return expiry(self.certificate)

    @property
    def pair(self) -> KeyPair:
        return KeyPair(self.certificate, self.key)

    def settings(self, path: Path) -> dict[str, Any]:
        """Dotted keys of the settings of a server that was given this kit as the file `path`."""
        file = str(path.resolve())
        found = {"name": self.name, "model": self.model, "nats.url": self.url}
        return found | {f"nats.{key}": file for key in ("ca", "certificate", "key")}


def write_kit(kit: Kit, path: Path) -> None:
    facts = msgspec.to_builtins(kit)
    lines = [f"# {kit.name} in the federation {kit.federation}. Secret: it opens an account."]
    with write_atomically(path, SECRET) as file:
        file.write(("\n".join(lines) + "\n" + to_toml(facts)).encode())


def read_kit(path: Path) -> Kit:
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Kit)
    except OSError as error:
        raise InvalidFile(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidFile(f"{path}: expected a kit that fclub federation add wrote: {error}") from None


def to_toml(tree: Mapping[str, Any], prefix: str = "") -> str:
    """Values first, then tables; a JSON text is also a TOML text."""
    lines, tables = [], []
    for key, value in tree.items():
        match value:
            case None:
                continue
            case dict():
                tables.append(f"\n[{prefix}{key}]\n{to_toml(value, f'{prefix}{key}.')}")
            case [dict(), *_]:
                tables += [f"\n[[{prefix}{key}]]\n{to_toml(one)}" for one in value]
            case str() if "\n" in value:
                lines.append(f'{key} = """\n{value}"""\n')
            case _:
                lines.append(f"{key} = {json.dumps(value)}\n")
    return "".join(lines + tables)
