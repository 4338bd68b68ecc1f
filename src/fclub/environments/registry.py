"""Every environment by name."""

from __future__ import annotations

import inspect
from typing import Any

from fclub.environments.arrays import Arrays, MovieLens, Yelp
from fclub.environments.base import Environment
from fclub.environments.liked import Liked
from fclub.environments.ratings import RatedItems
from fclub.environments.synthetic import Synthetic
from fclub.errors import UnknownName

ENVIRONMENTS: dict[str, type[Environment]] = {
    kind.name: kind for kind in (Synthetic, MovieLens, Yelp, Arrays, RatedItems, Liked)
}


def make_environment(name: str, **parameters: Any) -> Environment:
    """An environment that is not started yet; unknown names and impossible settings are refused."""
    if name not in ENVIRONMENTS:
        raise UnknownName("environment", name, ENVIRONMENTS)
    kind = ENVIRONMENTS[name]
    known = inspect.signature(kind).parameters
    for key in parameters:
        if key not in known:
            raise UnknownName(f"parameter of {name}", key, known)
    return kind(**parameters)
