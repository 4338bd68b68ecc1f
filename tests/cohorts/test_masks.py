"""Known answers, a second implementation, and sums in which masks cancel."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from tests.cohorts import slow
from tests.cohorts.lab import identity_of, lab_of

from fclub.cohorts.masks import (
    AgreementKey,
    Context,
    SignedKey,
    add_masks,
    add_up,
    check_keys,
    check_signature,
    field,
    mask,
    mask_key,
    public_identity,
    roster_hash,
    sign_key,
    to_bytes,
)
from fclub.errors import InvalidJoin, PrivacyError

SMALL_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
]
BASE = (9).to_bytes(32, "little")
CONTEXT = Context("lab", b"m" * 32, 1, b"p" * 32, 1, 0, b"n" * 16, 7, b"w" * 32, 1, 38)


def test_x25519_is_that_of_rfc_7748() -> None:
    """Section 5.2: the first vector, and the iterated one after 1 and 1,000 steps."""
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    secret = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    assert AgreementKey(scalar).shared("x", point) == slow.x25519(scalar, point) == secret
    k = u = BASE
    for step in range(1_000):
        k, u = AgreementKey(k).shared("x", u), k
        if step == 0:
            assert k.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"
    assert AgreementKey(scalar).public == slow.x25519(scalar, BASE)


def test_key_derivation_is_that_of_rfc_5869() -> None:
    """Test case 1 for the slow one; the same inputs give both the same keys."""
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert slow.hkdf(b"\x0b" * 22, salt, info, 42).hex() == expected
    one, other = SignedKey("ab", b"1" * 32, b""), SignedKey("aba", b"2" * 32, b"")
    ends = [sha256(b"\x00\x02ab" + b"1" * 32).digest(), sha256(b"\x00\x03aba" + b"2" * 32).digest()]
    derived = slow.hkdf(b"secret", b"r" * 32, b"fclub-mask-1" + b"".join(ends), 32)
    assert mask_key(b"secret", b"r" * 32, one, other) == derived


def test_masks_are_the_stream_of_rfc_8439() -> None:
    """Section 2.3.2 for the slow one; appendix A.1, the first vector, for both."""
    block = slow.chacha20(bytes(range(32)), 1, bytes.fromhex("000000090000004a00000000"), 64)
    assert block.hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert to_bytes(mask(bytes(32), 8)).hex() == expected
    key = sha256(b"key").digest()
    assert to_bytes(mask(key, 40)) == slow.chacha20(key, 0, bytes(12), 320)


def cohort(names: list[str]) -> tuple[bytes, list[bytes], list[SignedKey]]:
    """Context, secrets and Joins of members with these names."""
    context = CONTEXT.digest()
    secrets = [sha256(name.encode()).digest() for name in names]
    joins = [
        sign_key(identity_of(name).secret, context, name, AgreementKey(secret).public)
        for name, secret in zip(names, secrets, strict=True)
    ]
    return context, secrets, joins


def test_a_cohort_of_four_equals_the_slow_one() -> None:
    names = ["ab", "aba", "b", "ba"]
    context, secrets, joins = cohort(names)
    rho = roster_hash(context, joins)
    assert rho == slow.rho(context, joins)
    rng = np.random.default_rng(5)
    vectors = [rng.integers(-(2**62), 2**62, 6) for _ in names]
    found = []
    for name, secret, vector in zip(names, secrets, vectors, strict=True):
        masked = add_masks(vector, name, AgreementKey(secret), joins, rho)
        assert masked.tolist() == slow.masked(vector.tolist(), name, secret, context, joins)
        found.append(to_bytes(masked))
    total = [(sum(column) + 2**63) % 2**64 - 2**63 for column in np.array(vectors, object).T]
    assert add_up(found, 6).tolist() == total


def test_the_context_is_the_hash_of_its_fields_with_their_lengths() -> None:
    def text(value: bytes) -> bytes:
        return len(value).to_bytes(2, "big") + value

    expected = text(b"fclub-context-1") + text(b"lab") + text(b"m" * 32) + (1).to_bytes(8, "big")
    expected += text(b"p" * 32) + (1).to_bytes(8, "big") + (0).to_bytes(8, "big") + text(b"n" * 16)
    expected += (
        (7).to_bytes(8, "big") + text(b"w" * 32) + (1).to_bytes(8, "big") + (38).to_bytes(8, "big")
    )
    assert CONTEXT.digest() == sha256(expected).digest()


@pytest.mark.parametrize("name", [entry.name for entry in fields(Context)])
def test_every_field_of_the_context_counts(name: str) -> None:
    value = getattr(CONTEXT, name)
    other = value + 1 if isinstance(value, int) else value + value[:1]
    changed: dict[str, Any] = {name: other}
    assert replace(CONTEXT, **changed).digest() != CONTEXT.digest()


def test_fields_cannot_be_shifted() -> None:
    assert field(b"ab") + field(b"a") != field(b"a") + field(b"ba")
    with pytest.raises(OverflowError):
        field(bytes(2**16))


def test_names_without_lengths_would_open_a_vector() -> None:
    """`ba` copies the key of `ab`: by names alone, its pair with `aba` would have the same mask."""
    secret, rho = b"s" * 32, b"r" * 32
    key = b"k" * 32
    ab, aba, ba = SignedKey("ab", key, b""), SignedKey("aba", b"l" * 32, b""), SignedKey("ba", key, b"")
    assert (ab.name + aba.name) == (aba.name + ba.name)
    assert mask_key(secret, rho, ab, aba) != mask_key(secret, rho, aba, ba)


def test_signatures_hold_for_one_context_name_and_key() -> None:
    identity = identity_of("a")
    public, context = public_identity(identity.secret), CONTEXT.digest()
    join = sign_key(identity.secret, context, "a", b"k" * 32)
    check_signature(public, context, join)
    other = replace(CONTEXT, slot=1).digest()
    wrong = [
        (public, other, join),
        (public, context, join._replace(name="b")),
        (public, context, join._replace(key=b"l" * 32)),
        (public, context, join._replace(signature=bytes(64))),
        (public, context, join._replace(signature=b"")),
        (public_identity(identity_of("b").secret), context, join),
    ]
    for arguments in wrong:
        with pytest.raises(InvalidJoin, match="not signed over this context"):
            check_signature(*arguments)


@pytest.mark.parametrize("point", SMALL_ORDER, ids=bytes.hex)
def test_a_zero_secret_is_refused(point: bytes) -> None:
    with pytest.raises(InvalidJoin, match="small order"):
        AgreementKey(b"s" * 32).shared("x", point)


def test_equal_keys_and_other_spellings_of_a_key_are_refused() -> None:
    key = AgreementKey(b"s" * 32).public
    with pytest.raises(InvalidJoin, match="the same key"):
        check_keys([SignedKey("a", key, b""), SignedKey("b", key, b"")])
    top = key[:31] + bytes([key[31] | 128])
    assert slow.x25519(b"t" * 32, top) == slow.x25519(b"t" * 32, key)
    small = (2**255 - 19 + 9).to_bytes(32, "little")
    assert slow.x25519(b"t" * 32, small) == slow.x25519(b"t" * 32, BASE)
    for spelling in (top, small, key[:31], key + b"0"):
        with pytest.raises(InvalidJoin, match="canonical"):
            check_keys([SignedKey("a", spelling, b"")])


def test_a_key_cannot_be_stored_or_shown() -> None:
    secret = sha256(b"secret").digest()
    key = AgreementKey(secret)
    with pytest.raises(PrivacyError, match="memory"):
        pickle.dumps(key)
    assert secret.hex() not in repr(key)
    assert repr(secret) not in repr(key)


def test_only_whole_numbers_are_masked() -> None:
    context, secrets, joins = cohort(["a", "b"])
    with pytest.raises(PrivacyError, match="64 bits"):
        add_masks(np.zeros(3), "a", AgreementKey(secrets[0]), joins, context)  # type: ignore[arg-type]


@pytest.mark.parametrize("members", [3, 4, 10, 40])
def test_the_masked_sum_is_the_plain_sum_bit_for_bit(members: int) -> None:
    lab = lab_of(members)
    lab.run(0)
    plain = sum(lab.vectors[name] + lab.noise[name].drawn[0] for name in lab.members)
    assert lab.hub.total.tolist() == np.asarray(plain).tolist()
    assert lab.refused == []


def test_sums_wrap_and_do_not_saturate() -> None:
    edge = np.array([2**63 - 1, -(2**63)], dtype=np.int64).view(np.uint64)
    total = add_up([to_bytes(edge), to_bytes(edge), to_bytes(edge)], 2)
    assert total.tolist() == [(3 * (2**63 - 1) + 2**63) % 2**64 - 2**63, -(2**63)]
