"""What can be checked before a store is made: once made, it is bound to a name and a model."""

from __future__ import annotations

import ssl
from pathlib import Path

from fclub.service.http.keys import keys_for
from fclub.service.link.nats_wire import broker_of
from fclub.service.nodes.parts import family_of, identity_of, new_items, signers_of
from fclub.service.reread import renew
from fclub.service.settings import GlobalSettings, LocalSettings


def check_start(settings: LocalSettings | GlobalSettings) -> None:
    """Refuse a model, keys, certificates or a new catalogue with which the server could not start."""
    family_of(settings.model)
    http = settings.http
    keys_for(settings)
    if not http.socket and (http.tls_certificate or http.tls_key):
        renew(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), http)
    broker_of(settings.nats)
    if isinstance(settings, GlobalSettings):
        signers_of(settings)
    elif settings.nats.url:
        identity_of(settings)
    if isinstance(settings, LocalSettings) and settings.catalogue and not Path(settings.store).exists():
        new_items(settings)
