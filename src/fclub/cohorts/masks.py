"""The cryptography of cohorts: signed fresh keys, pairwise masks mod 2⁶⁴, sums in which they cancel.

docs/specification/cohorts.md states every formula here. Nothing else in the package may derive a mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fclub.core.lattice import Whole
from fclub.errors import InvalidJoin, PrivacyError
from fclub.extras import need

Words = NDArray[np.uint64]
"""Numbers mod 2⁶⁴."""

KEY, SIGNATURE, HASH, NONCE = 32, 64, 32, 16
"""Lengths in bytes."""

_PRIME = 2**255 - 19
_LITTLE = np.dtype("<u8")


@cache
def _curves() -> Any:
    what, extra = "secure sums", "service"
    ed = need("cryptography.hazmat.primitives.asymmetric.ed25519", what, extra)
    x = need("cryptography.hazmat.primitives.asymmetric.x25519", what, extra)
    return ed.Ed25519PrivateKey, ed.Ed25519PublicKey, x.X25519PrivateKey, x.X25519PublicKey


@cache
def _symmetric() -> Any:
    what, extra = "secure sums", "service"
    hashes = need("cryptography.hazmat.primitives.hashes", what, extra)
    hkdf = need("cryptography.hazmat.primitives.kdf.hkdf", what, extra)
    ciphers = need("cryptography.hazmat.primitives.ciphers", what, extra)
    return hashes.SHA256, hkdf.HKDF, ciphers.Cipher, ciphers.algorithms.ChaCha20


@cache
def _invalid_signature() -> Any:
    return need("cryptography.exceptions", "secure sums", "service").InvalidSignature


def field(data: bytes) -> bytes:
    """A field of any length, after two bytes of length: without them, names could be shifted."""
    return len(data).to_bytes(2, "big") + data


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


@dataclass(frozen=True)
class Context:
    """What all members of a cohort must agree on. Each takes every field from its own knowledge."""

    federation: str
    members: bytes
    epoch: int
    plan: bytes
    period: int
    slot: int
    nonce: bytes
    version: int
    model: bytes
    colluders: int
    cap: int

    def digest(self) -> bytes:
        parts = (
            field(b"fclub-context-1"),
            field(self.federation.encode()),
            field(self.members),
            number(self.epoch),
            field(self.plan),
            number(self.period),
            number(self.slot),
            field(self.nonce),
            number(self.version),
            field(self.model),
            number(self.colluders),
            number(self.cap),
        )
        return sha256(b"".join(parts)).digest()


class SignedKey(NamedTuple):
    """The content of a Join."""

    name: str
    key: bytes
    signature: bytes


def public_identity(private: bytes) -> bytes:
    identity, *_ = _curves()
    return bytes(identity.from_private_bytes(private).public_key().public_bytes_raw())


def _signed(context: bytes, name: str, key: bytes) -> bytes:
    return field(b"fclub-join-1") + context + field(name.encode()) + key


def sign_key(private: bytes, context: bytes, name: str, key: bytes) -> SignedKey:
    identity, *_ = _curves()
    signature = identity.from_private_bytes(private).sign(_signed(context, name, key))
    return SignedKey(name, key, bytes(signature))


def check_signature(public: bytes, context: bytes, join: SignedKey) -> None:
    """Over the context of whoever checks: a message brings none along."""
    _, identity, *_ = _curves()
    message = _signed(context, join.name, join.key)
    try:
        identity.from_public_bytes(public).verify(join.signature, message)
    except (_invalid_signature(), ValueError):
        raise InvalidJoin(
            f"the Join of {join.name} is not signed over this context: expected its key of the member "
            "list over the same list, plan, model and slot; compare them with its operator"
        ) from None


class AgreementKey:
    """A fresh X25519 key. It lives in the memory of one process and cannot be stored or shown."""

    __slots__ = ("_private", "public")

    def __init__(self, secret: bytes) -> None:
        _, _, private, _ = _curves()
        self._private = private.from_private_bytes(secret)
        self.public = bytes(self._private.public_key().public_bytes_raw())

    def __reduce__(self) -> NoReturn:
        raise PrivacyError("an agreement key never leaves the memory of its process")

    def shared(self, name: str, key: bytes) -> bytes:
        """The X25519 secret with this key; one that does not depend on this side is refused."""
        *_, public = _curves()
        try:
            secret = bytes(self._private.exchange(public.from_public_bytes(key)))
        except ValueError:
            secret = bytes(KEY)
        if not any(secret):
            raise InvalidJoin(f"the key of {name} has small order: the secret with it would be zero")
        return secret


def check_keys(joins: Iterable[SignedKey]) -> None:
    """Keys are canonical and differ; X25519 itself ignores the top bit and reduces mod 2²⁵⁵ − 19."""
    seen: dict[bytes, str] = {}
    for join in joins:
        if len(join.key) != KEY or int.from_bytes(join.key, "little") >= _PRIME:
            raise InvalidJoin(f"the key of {join.name} is not a canonical X25519 key")
        if join.key in seen:
            raise InvalidJoin(f"{join.name} and {seen[join.key]} have the same key: one has copied it")
        seen[join.key] = join.name


def roster_hash(context: bytes, joins: Sequence[SignedKey]) -> bytes:
    """ρ."""
    parts = [field(b"fclub-roster-1"), context, number(len(joins))]
    for join in joins:
        parts += [field(join.name.encode()), join.key, field(join.signature)]
    return sha256(b"".join(parts)).digest()


def _end(join: SignedKey) -> bytes:
    return sha256(field(join.name.encode()) + join.key).digest()


def mask_key(secret: bytes, roster: bytes, lesser: SignedKey, greater: SignedKey) -> bytes:
    """k_ij."""
    sha, hkdf, *_ = _symmetric()
    info = b"fclub-mask-1" + _end(lesser) + _end(greater)
    return bytes(hkdf(algorithm=sha(), length=KEY, salt=roster, info=info).derive(secret))


def mask(key: bytes, entries: int) -> Words:
    """ChaCha20's stream as whole numbers; a key serves once, so its nonce is zero."""
    _, _, cipher, chacha = _symmetric()
    stream = cipher(chacha(key, bytes(NONCE)), mode=None).encryptor().update(bytes(8 * entries))
    return np.frombuffer(stream, dtype=_LITTLE).astype(np.uint64)


def add_masks(
    values: Whole, name: str, key: AgreementKey, joins: Sequence[SignedKey], roster: bytes
) -> Words:
    """Y: the lesser name of a pair adds their mask, the greater one subtracts it."""
    if values.dtype != np.int64:
        raise PrivacyError(f"expected whole numbers of 64 bits to mask, got {values.dtype}")
    masked = values.view(np.uint64).copy()
    own = next(join for join in joins if join.name == name)
    for join in joins:
        if join.name == name:
            continue
        adds = name.encode() < join.name.encode()
        lesser, greater = (own, join) if adds else (join, own)
        secret = key.shared(join.name, join.key)
        stream = mask(mask_key(secret, roster, lesser, greater), len(masked))
        masked = masked + stream if adds else masked - stream
    return masked


def to_bytes(masked: Words) -> bytes:
    return masked.astype(_LITTLE).tobytes()


def add_up(masked: Iterable[bytes], entries: int) -> Whole:
    """ΣY mod 2⁶⁴, as signed numbers."""
    total = np.zeros(entries, dtype=np.uint64)
    for values in masked:
        total += np.frombuffer(values, dtype=_LITTLE)
    return total.view(np.int64)
