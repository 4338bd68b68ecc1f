"""Cohorts a second time, written from the specification: slow, in plain Python."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

P = 2**255 - 19


def x25519(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder."""
    k = bytearray(scalar)
    k[0] &= 248
    k[31] = (k[31] & 127) | 64
    n = int.from_bytes(k, "little")
    x1 = (int.from_bytes(point, "little") & (2**255 - 1)) % P
    x2, z2, x3, z3 = 1, 0, x1, 1
    for bit in range(254, -1, -1):
        if (n >> bit) & 1:
            x2, z2, x3, z3 = _ladder(x1, x3, z3, x2, z2)
            x2, z2, x3, z3 = x3, z3, x2, z2
        else:
            x2, z2, x3, z3 = _ladder(x1, x2, z2, x3, z3)
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def _ladder(x1: int, x2: int, z2: int, x3: int, z3: int) -> tuple[int, int, int, int]:
    """(2·Q, Q + R) for Q = (x2 : z2), R = (x3 : z3)."""
    a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
    aa, bb, da, cb = a * a, b * b, d * a, c * b
    e = aa - bb
    return aa * bb % P, e * (aa + 121665 * e) % P, (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 with SHA-256."""
    pseudo_random = hmac.new(salt, secret, sha256).digest()
    out, block, counter = b"", b"", 0
    while len(out) < length:
        counter += 1
        block = hmac.new(pseudo_random, block + info + bytes([counter]), sha256).digest()
        out += block
    return out[:length]


def chacha20(key: bytes, counter: int, nonce: bytes, length: int) -> bytes:
    """RFC 8439, section 2.4: the stream alone."""
    out = b""
    while len(out) < length:
        out += _block(key, counter, nonce)
        counter += 1
    return out[:length]


def _block(key: bytes, counter: int, nonce: bytes) -> bytes:
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    start += [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    start += [counter] + [int.from_bytes(nonce[i : i + 4], "little") for i in range(0, 12, 4)]
    s = list(start)
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(10):
        for a, b, c, d in columns + diagonals:
            for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = (s[x] + s[y]) % 2**32
                mixed = s[z] ^ s[x]
                s[z] = ((mixed << turn) | (mixed >> (32 - turn))) % 2**32
    return b"".join(((x + y) % 2**32).to_bytes(4, "little") for x, y in zip(s, start, strict=True))


def with_length(data: bytes) -> bytes:
    return bytes([len(data) // 256, len(data) % 256]) + data


def rho(context: bytes, joins: Sequence[tuple[str, bytes, bytes]]) -> bytes:
    text = with_length(b"fclub-roster-1") + context + len(joins).to_bytes(8, "big")
    for name, key, signature in joins:
        text += with_length(name.encode()) + key + with_length(signature)
    return sha256(text).digest()


def masked(
    values: list[int],
    name: str,
    secret: bytes,
    context: bytes,
    joins: Sequence[tuple[str, bytes, bytes]],
) -> list[int]:
    """Y of one member."""
    salt = rho(context, joins)
    own = x25519(secret, (9).to_bytes(32, "little"))
    result = [value % 2**64 for value in values]
    for other, key, _ in joins:
        if other == name:
            continue
        ends = sorted([(name.encode(), own), (other.encode(), key)])
        info = b"fclub-mask-1" + b"".join(sha256(with_length(n) + k).digest() for n, k in ends)
        stream = chacha20(hkdf(x25519(secret, key), salt, info, 32), 0, bytes(12), 8 * len(values))
        sign = 1 if ends[0][0] == name.encode() else -1
        for i in range(len(values)):
            word = int.from_bytes(stream[8 * i : 8 * i + 8], "little")
            result[i] = (result[i] + sign * word) % 2**64
    return result
