"""The header by which a proxy in front of several local servers finds the one of a user.

A bucket is the first byte of the SHA-256 of a user's id in UTF-8, as two lower-case hexadecimal digits.
The id of a decision ends with the bucket of its user, so that a reward finds the same server.
"""

from __future__ import annotations

from hashlib import sha256

HEADER = "X-Fclub-User"
"""Carries the bucket that all users of a request share."""

DIGITS, HEXADECIMAL = 2, frozenset("0123456789abcdef")


def bucket_of_user(user: str) -> str:
    """One of 256; text that is not Unicode has one, too, but cannot be sent.

    >>> bucket_of_user("ann")
    '49'
    """
    return sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def bucket_of_decision(decision: str) -> str:
    """That of the user whom the decision was made for; nothing, if it is no decision.

    >>> bucket_of_decision("0199a3f2c4e0000178d02b6a15c3f749")
    '49'
    """
    end = decision[-DIGITS:].lower()
    return end if len(end) == DIGITS and HEXADECIMAL.issuperset(end) else ""
