"""Every environment by name."""

from __future__ import annotations

import inspect
from typing import Any

from fclub.environments.arrays import Arrays, MovieLens, Yelp
from fclub.environments.base import Environment
from fclub.environments.liked import Liked
from fclub.environments.synthetic import Synthetic
from fclub.environments.vectors import RatedItems
from fclub.errors import UnknownName

ENVIRONMENTS: dict[str, type[Environment]] = {
    kind.name: kind for kind in (Synthetic, MovieLens, Yelp, Arrays, RatedItems, Liked)
}


def defaults_of(name: str) -> dict[str, Any]:
    """The parameters of an environment; None where one has no default."""
    if name not in ENVIRONMENTS:
        raise UnknownName("environment", name, ENVIRONMENTS)
    known = inspect.signature(ENVIRONMENTS[name]).parameters
    return {key: None if p.default is p.empty else p.default for key, p in known.items()}


def make_environment(name: str, **parameters: Any) -> Environment:
    """An environment that is not started yet; unknown names and impossible settings are refused."""
    known = defaults_of(name)
    for key in parameters:
        if key not in known:
            raise UnknownName(f"parameter of {name}", key, known)
    return ENVIRONMENTS[name](**parameters)
