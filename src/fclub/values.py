"""Values of parameters: read from text, and checked, by the kind of the parameter's default.

Every `--set`, every environment variable and every settings file is read by `parse_value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import msgspec

from fclub.errors import InvalidSetting, UnknownName

KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def split_assignment(entry: str, form: str = "key=value") -> tuple[str, str]:
    """Key and value of an option such as `http.port=8100`."""
    key, equals, text = entry.partition("=")
    if not (key and equals):
        raise InvalidSetting(f"{entry!r} is not of the form {form}", entry)
    return key, text


def parse_value(name: str, text: str, default: object) -> Any:
    """What a text means for a parameter with this default.

    A default of None tells nothing; then numbers, true, false and null are what they look like.
    """
    if default is None:
        try:
            return msgspec.json.decode(text, type=float | int | bool | None)
        except msgspec.DecodeError:
            return text
    try:
        return msgspec.convert(text, type(default), strict=False)
    except msgspec.ValidationError:
        raise InvalidSetting(f"{name} must be {KINDS[type(default)]}, got {text!r}", text) from None


def check_value(name: str, value: object, default: object) -> None:
    """Refuse a truth value, a number or a text where the default is one of the others."""
    if default is not None and _kind(value) is not _kind(default):
        raise InvalidSetting(f"{name} must be {KINDS[type(default)]}, got {value!r}", value)


def check_parameters(
    owner: str, parameters: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """All parameters of `owner`, the given ones and the others at their defaults."""
    for key, value in parameters.items():
        if key not in defaults:
            raise UnknownName(f"parameter of {owner}", key, defaults)
        check_value(f"{owner}: {key}", value, defaults[key])
    return {**defaults, **parameters}


def _kind(value: object) -> type:
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, Real) else type(value)
