"""Every environment by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from fclub.environments.base import Environment
from fclub.environments.liked import Liked
from fclub.environments.synthetic import Synthetic
from fclub.environments.vectors import Arrays, MovieLens, RatedItems, Yelp
from fclub.errors import UnknownName
from fclub.own import find_class, instance_of, is_reference

ENVIRONMENTS: dict[str, type[Environment]] = {
    kind.name: kind for kind in (Synthetic, MovieLens, Yelp, Arrays, RatedItems, Liked)
}


def find_environment(name: str) -> type[Environment]:
    """A registered class, or one of one's own by reference."""
    if is_reference(name):
        return find_class(name, Environment)  # type: ignore[type-abstract]
    if name not in ENVIRONMENTS:
        raise UnknownName("environment", name, ENVIRONMENTS)
    return ENVIRONMENTS[name]


def construct(kind: type[Environment], parameters: Mapping[str, Any]) -> Environment:
    """What the class has no parameter for is refused."""
    known = inspect.signature(kind).parameters
    for key in parameters:
        if key not in known:
            raise UnknownName(f"parameter of {kind.name}", key, known)
    return kind(**parameters)


def make_environment(name: str, **parameters: Any) -> Environment:
    """An environment that is not started yet; unknown names and impossible settings are refused.

    `"mine.py:Mine"` names a class of your own.

    >>> import fclub
    >>> environment = fclub.make_environment("synthetic", users=20, servers=2)
    >>> environment.start(seed=0)
    >>> user, items = environment.visit()
    >>> items.shape
    (10, 10)
    >>> fclub.make_environment("synthetic", user=20)
    Traceback (most recent call last):
    fclub.errors.UnknownName: no parameter of synthetic is called 'user'; did you mean users, clusters?
    """
    return construct(find_environment(name), parameters)


def as_environment(environment: Environment | str) -> Environment:
    """The object that was given, or the environment of this name or reference."""
    if isinstance(environment, str):
        return make_environment(environment)
    return instance_of(environment, Environment)  # type: ignore[type-abstract]
