"""Values of parameters: read from text, and checked, by the type that the parameter declares.

Every `--set`, every environment variable and every settings file is read by `parse_value`.
"""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import numpy as np

from fclub.errors import InvalidSetting

Parameter = float | int | str | bool | None
"""A value that a policy or an environment can be given by name."""

KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
}


def split_assignment(entry: str, form: str = "key=value") -> tuple[str, str]:
    """Key and value of an option such as `http.port=8100`."""
    key, equals, text = entry.partition("=")
    if not (key and equals):
        raise InvalidSetting(f"{entry!r} is not of the form {form}", entry)
    return key, text


def is_plain(kind: Any) -> bool:
    """Is the type made of numbers, texts, truth values, choices of them and None only?"""
    if get_origin(kind) in (Annotated, Union, UnionType):
        parts = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
        return all(is_plain(part) for part in parts)
    return kind in KINDS or get_origin(kind) is Literal


def describe(kind: Any) -> str:
    """A type and its limits in words."""
    if get_origin(kind) is Annotated:
        inner, *rest = get_args(kind)
        limits = [text for meta in rest if isinstance(meta, msgspec.Meta) for text in _limits(meta)]
        return f"{describe(inner)} {' and '.join(limits)}".rstrip()
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(describe(part) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    return KINDS.get(kind, "any value")


def _limits(meta: msgspec.Meta) -> list[str]:
    words = {"above": meta.gt, "of at least": meta.ge, "below": meta.lt, "of at most": meta.le}
    return [f"{word} {limit:g}" for word, limit in words.items() if limit is not None]


def parse_value(name: str, text: str, kind: Any) -> Any:
    """What a text means for a parameter of this type.

    Where any value will do, numbers, true, false and null are what they look like.
    """
    if kind is Any:
        try:
            return msgspec.json.decode(text, type=float | int | bool | None)
        except msgspec.DecodeError:
            return text
    return _convert(name, text, kind, strict=False)


def check_value(name: str, value: Any, kind: Any, infinite: bool = False) -> Any:
    """The value as this type, or `InvalidSetting`; a number must be finite unless told otherwise."""
    plain = value.item() if isinstance(value, np.generic) else value
    found = plain if kind is Any else _convert(name, plain, kind, strict=True)
    if isinstance(found, float) and not (math.isfinite(found) or (infinite and not math.isnan(found))):
        raise InvalidSetting(f"{name} must be {describe(kind)}, got {value!r}", value)
    return found


def _convert(name: str, value: Any, kind: Any, strict: bool) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError:
        raise InvalidSetting(f"{name} must be {describe(kind)}, got {value!r}", value) from None
