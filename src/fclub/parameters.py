"""Parameters, declared once: type, meaning, unit, limits and default of each in one line.

A parameter is an annotated attribute of a class of `Parameters`, such as a policy:

    ridge: Annotated[float, meaning("regularisation of every regression", above=0)] = 1.0

or an annotated argument of a constructor that is `checked`, such as an environment's. From that line
come the constructor that type checkers and editors know, the check of what is given to it, `--set`, the
list of `fclub policies` and the pages of the reference. Every `--set`, every environment variable and
every settings file is read by `parse_value`, by the type that is declared.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import msgspec
import numpy as np
from msgspec import Meta

from fclub.errors import InvalidSetting, UnknownName

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


Given = ParamSpec("Given")
"""What a constructor takes."""


def meaning(
    text: str,
    unit: str = "",
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    infinite: bool = False,
) -> Meta:
    """What a parameter means, in which unit it is, and its limits; `infinite` if it may be ∞.

    >>> import fclub
    >>> from typing import Annotated
    >>> class Shy(fclub.LinUCB):
    ...     patience: Annotated[int, fclub.meaning("visits without a choice", "visits", least=0)] = 3
    >>> Shy.parameters["patience"].allowed
    'a whole number of at least 0'
    >>> Shy(patience=-1)
    Traceback (most recent call last):
    fclub.errors.InvalidSetting: shy: patience must be a whole number of at least 0, got -1
    """
    limits: Any = {"gt": above, "ge": least, "lt": below, "le": most}
    extra = {"unit": unit, "infinite": infinite}
    return Meta(description=text, extra=extra, **{k: v for k, v in limits.items() if v is not None})


@dataclass(frozen=True)
class Row:
    """One parameter, as it was declared."""

    name: str
    kind: Any
    default: Any
    open: bool = False
    """It may have values that no text stands for, such as a data frame; `kind` is that of its texts."""

    @property
    def meaning(self) -> str:
        return _meta(self.kind).description or ""

    @property
    def unit(self) -> str:
        return str(_extra(self.kind).get("unit", ""))

    @property
    def allowed(self) -> str:
        """The values that it may have, in words."""
        return describe(self.kind)

    def check(self, value: object, owner: str = "") -> Any:
        """The value as the declared type, or `InvalidSetting`."""
        if self.open:
            return value
        name = f"{owner}: {self.name}" if owner else self.name
        return check_value(name, value, self.kind, infinite=_extra(self.kind).get("infinite", False))

    def parse(self, text: str, name: str) -> Any:
        """The value that a text stands for; `name` is what the person who wrote it calls it."""
        return parse_value(name, text, self.kind)


def _meta(kind: Any) -> Meta:
    """What `meaning` gave, wherever it stands in the type: `Annotated[int, meaning(…)] | None`."""
    found = [part for part in getattr(kind, "__metadata__", ()) if isinstance(part, Meta)]
    found += [_meta(part) for part in get_args(kind) if get_origin(part) is Annotated]
    return found[-1] if found else Meta()


def _extra(kind: Any) -> dict[str, Any]:
    return _meta(kind).extra or {}


def _row(name: str, kind: Any, default: Any) -> Row:
    """What has another type than plain values, or none, is known by the type of its default."""
    if is_plain(kind):
        return Row(name, kind, default)
    metas = getattr(kind, "__metadata__", ())
    plain = Any if default is None else type(default)
    declared = kind if isinstance(kind, str) or kind is Any else None
    return Row(name, Annotated[plain, *metas] if metas else plain, default, open=declared is None)


def rows_of(function: Callable[..., object]) -> dict[str, Row]:
    """The parameters of a function or constructor that says what they are in its signature."""
    known = inspect.signature(function).parameters
    hints = _hints(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    return {
        name: _row(name, hints.get(name, Any), None if p.default is p.empty else p.default)
        for name, p in known.items()
    }


def checked(init: Callable[Given, None]) -> Callable[Given, None]:
    """A constructor that refuses what does not fit the types and limits of its signature."""
    signature = inspect.signature(init)

    @wraps(init)
    def check(*args: Given.args, **kwargs: Given.kwargs) -> None:
        given = signature.bind(*args, **kwargs)
        rows = rows_of(init)
        for name in list(given.arguments)[1:]:
            given.arguments[name] = rows[name].check(given.arguments[name])
        init(*given.args, **given.kwargs)

    return check


def check_fields(record: object) -> None:
    """Give the fields of a frozen dataclass their declared types; refuse what does not fit."""
    for name, kind in _hints(type(record)).items():
        object.__setattr__(record, name, _row(name, kind, None).check(getattr(record, name)))


def _hints(declared: Any) -> dict[str, Any]:
    """Own annotations; one that names what only a surrounding function knows stays a text."""
    try:
        return inspect.get_annotations(declared, eval_str=True)
    except NameError:
        return inspect.get_annotations(declared)


@dataclass_transform(kw_only_default=True)
class Parameters:
    """Base of what has parameters; they are given by name, and are attributes.

    Attributes of other kinds are assigned in methods, or annotated as `ClassVar`. `defaults` may stand
    in place of annotations, as a short form without types.
    """

    parameters: ClassVar[Mapping[str, Row]] = {}
    defaults: ClassVar[Mapping[str, Parameter]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in vars(cls).get("defaults", {}).items():
            cls.__annotations__[name] = Any
            setattr(cls, name, value)
        rows = _declared(cls)
        cls.parameters, cls.defaults = rows, {name: row.default for name, row in rows.items()}
        cls.__doc__ = _documented(cls)
        if "__init__" not in vars(cls):
            cls.__signature__ = _signature(rows)  # type: ignore[attr-defined]

    def __init__(self, **given: Any) -> None:
        owner = getattr(type(self), "name", type(self).__name__)
        for key in given:
            if key not in self.parameters:
                raise UnknownName(f"parameter of {owner}", key, self.parameters)
        for name, row in self.parameters.items():
            setattr(self, name, row.check(given[name], owner) if name in given else row.default)
        self._check()

    def _check(self) -> None:
        """Refuse values that are possible alone but not together."""

    def get_params(self) -> dict[str, Parameter]:
        return {name: getattr(self, name) for name in self.parameters}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({changed(self)})"


def changed(one: Parameters) -> str:
    """Parameters that are not at their defaults, as a constructor takes them."""
    given = {key: value for key, value in one.get_params().items() if value != one.defaults[key]}
    return ", ".join(f"{key}={value!r}" for key, value in given.items())


def _declared(cls: type[Parameters]) -> dict[str, Row]:
    """In the order of declaration, those of base classes first; a subclass may change a default."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        hints |= _hints(base)
    for name, hint in hints.items():
        if not (name.startswith("_") or hasattr(cls, name)) and is_plain(hint):
            raise InvalidSetting(f"{cls.__name__}: the parameter {name} needs a default", name)
    return {
        name: _row(name, hint, getattr(cls, name))
        for name, hint in hints.items()
        if not (name.startswith("_") or _is_class_variable(hint)) and hasattr(cls, name)
    }


def _is_class_variable(hint: Any) -> bool:
    return "ClassVar" in str(hint)


def _signature(rows: Mapping[str, Row]) -> inspect.Signature:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=row.default) for name, row in rows.items()]
    )


def _documented(cls: type[Parameters]) -> str | None:
    """The docstring, followed by the parameters."""
    text, rows = vars(cls).get("__doc__"), cls.parameters
    if not text or not rows:
        return text
    lines = [inspect.cleandoc(text), "", "Parameters", "----------"]
    for row in rows.values():
        unit = f", in {row.unit}" if row.unit else ""
        lines += [f"{row.name} : {row.allowed}{unit}; default {row.default}", f"    {row.meaning}"]
    return "\n".join(lines)
