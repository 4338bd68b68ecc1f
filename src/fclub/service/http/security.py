"""Tokens, TLS contexts, and the broker's rules of who may say what."""

from __future__ import annotations

import hmac
import secrets
import ssl
from hashlib import sha256

from fclub.errors import InvalidSetting
from fclub.service.link.nats_wire import UP_STREAM, Broker, down_stream
from fclub.service.settings import Http, Nats

APPLICATION, ADMIN = "application", "admin"


def new_token() -> str:
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Tokens have 256 bits of entropy: a plain hash cannot be searched."""
    return sha256(token.encode()).hexdigest()


class Guard:
    """Knows the hashes of the tokens; an admin may do all that an application may."""

    def __init__(self, http: Http) -> None:
        if not http.tokens and not http.admin_tokens:
            raise InvalidSetting("http.tokens: at least one token is needed (fclub local --new-token)")
        self._hashes = {APPLICATION: [*http.tokens, *http.admin_tokens], ADMIN: http.admin_tokens}
        self._proved: dict[str, set[bytes]] = {APPLICATION: set(), ADMIN: set()}

    def allows(self, header: bytes, role: str) -> bool:
        """Does an Authorization header prove this role?

        One that has done so is remembered. A set compares keyed hashes before it compares contents,
        so how long it takes says nothing about what is in it.
        """
        if header in self._proved[role]:
            return True
        proved = self._proves(header, role)
        if proved:
            self._proved[role].add(header)
        return proved

    def _proves(self, header: bytes, role: str) -> bool:
        """All hashes are compared, in constant time."""
        scheme, _, token = header.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return False
        given = hash_token(token)
        matches = [hmac.compare_digest(given, known) for known in self._hashes[role]]
        return any(matches)


def broker_of(nats: Nats) -> Broker:
    """Connection data of a broker, with a TLS context where there are certificates."""
    try:
        return Broker(nats.url, nats.user, nats.password, _client_context(nats))
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(f"nats: cannot use the certificates: {error}") from None


def _client_context(nats: Nats) -> ssl.SSLContext | None:
    if nats.ca is None:
        return None
    context = ssl.create_default_context(cafile=nats.ca)
    if nats.certificate:
        context.load_cert_chain(nats.certificate, nats.key)
    return context


def permissions(server: str) -> dict[str, dict[str, list[str]]]:
    """What the broker lets a local server do: speak as itself and read its own stream."""
    stream = down_stream(server)
    return {
        "publish": {
            "allow": [
                f"fclub.up.{server}",
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{server}",
                f"$JS.ACK.{stream}.{server}.>",
            ]
        },
        "subscribe": {"allow": [f"_INBOX_{server}.>"]},
    }


def global_permissions() -> dict[str, dict[str, list[str]]]:
    """The global server owns the streams and nothing else."""
    return {
        "publish": {"allow": ["fclub.down.*", "$JS.API.>", f"$JS.ACK.{UP_STREAM}.>"]},
        "subscribe": {"allow": ["_INBOX_global.>"]},
    }
