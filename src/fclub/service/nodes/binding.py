"""A store belongs to one model: what differs is named, key by key, from what to what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from fclub.errors import InvalidFile, OtherSettings
from fclub.protocol.families import FAMILIES
from fclub.protocol.rows.population import plan_of
from fclub.service.settings import PROMISE, Model
from fclub.service.store.store import Store

SETTINGS = "settings"
"""Where a store remembers the model that it was last opened with."""


OTHER_RULES = (
    "was made with other settings, or by a version of fclub with other rules for {}: go on with those, "
    "or begin with a new store, which spends a budget of its own"
)


NOT_REPLAYED = (
    "was not closed, and its log leads elsewhere with other settings; it was last opened with {}: "
    "start and stop it with those, then change them"
)


@contextmanager
def bound_to(store: Store, model: Model) -> Iterator[None]:
    """Name the keys of the model if what the block fixes differs from what the store remembers."""
    try:
        yield
    except OtherSettings as error:
        changes = _changes_since(store, model)
        if changes:
            raise OtherSettings(f"{store.path} was made with {'; '.join(changes)}") from error
        if "made with model = " in str(error):
            raise OtherSettings(f"{store.path} {OTHER_RULES.format(model.policy)}") from error
        raise
    except InvalidFile as error:
        changes = _changes_since(store, model)
        if changes:
            raise OtherSettings(f"{store.path} {NOT_REPLAYED.format('; '.join(changes))}") from error
        raise


def remember(store: Store, model: Model) -> None:
    store.note(SETTINGS, msgspec.json.encode(model).decode())


def _changes_since(store: Store, model: Model) -> list[str]:
    """What differs from the model that the store was last opened with."""
    known = store.get(SETTINGS)
    return list(_changes(msgspec.json.decode(known, type=Model), model)) if known else []


def _changes(old: Model, new: Model) -> Iterator[str]:
    """Of another policy nothing else can be compared."""
    before, now = _keys(old), _keys(new)
    for key in sorted(before | now) if old.policy == new.policy else ["model.policy"]:
        if before.get(key) != now.get(key):
            yield f"{key} = {_shown(before.get(key))}, now it is {_shown(now.get(key))}"


def _keys(model: Model) -> dict[str, Any]:
    """Every key with its value, also of parameters that were not given."""
    values = msgspec.to_builtins(model)
    defaults = FAMILIES[model.policy].defaults
    promise = {key: value for key, value in PROMISE.items() if key in defaults}
    parameters = dict(defaults) | promise | values.pop("parameters")
    keys = {f"model.{key}": value for key, value in values.items()}
    return keys | {f"model.parameters.{key}": value for key, value in parameters.items()}


def _shown(value: Any) -> str:
    """A plan by its hash."""
    if isinstance(value, str) and value.startswith("{"):
        return f"the plan {plan_of(value).digest[:16]}"
    return "not set" if value in (None, "") else str(value)
