"""What happens to a federation while it is attacked, and the neighbours to be told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from fclub.attack.pairs import Pair
from fclub.attack.running import Running
from fclub.core.types import Vector
from fclub.privacy.audit import canaries
from fclub.privacy.levels import USER
from fclub.privacy.sensitivity import CENTRE, Domain

TARGET, BYSTANDERS, NEWCOMER = "u0", ("u1", "u2"), "u3"
EVERYBODY = (TARGET, *BYSTANDERS)
VISITS = 28

Observation = tuple[Vector, float | None]


@dataclass(frozen=True)
class History:
    """What every user is shown and answers, visit by visit; the first visits of some are replaced.

    `silent` users visit and never answer, and who is `absent` never comes.
    """

    domain: Domain
    dim: int
    seed: int = 0
    replaced: tuple[tuple[str, int, Observation], ...] = ()
    silent: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()

    def at(self, user: str, visit: int) -> Observation:
        for who, when, observation in self.replaced:
            if (who, when) == (user, visit):
                return observation
        rng = np.random.default_rng([self.seed, int(user[1:]), visit])
        room = np.sqrt(self.domain.norm**2 - (self.domain.constant or 0.0) ** 2)
        free = self.dim - (self.domain.constant is not None)
        direction = rng.standard_normal(free)
        x = np.zeros(self.dim)
        x[:free] = 0.9 * room * direction / np.linalg.norm(direction)
        if self.domain.constant is not None:
            x[-1] = self.domain.constant
        return x, None if user in self.silent else float(rng.integers(0, 2))


@dataclass(frozen=True)
class Neighbours:
    """Two histories; `factor` times the claim is what telling them apart may cost.

    With the factor infinite they are no neighbours: then only what no noise covers must be equal.
    """

    name: str
    first: History
    second: History
    factor: float = 1.0


def neighbours_of(pair: Pair, domain: Domain, dim: int) -> list[Neighbours]:
    base = History(domain, dim)
    x, _ = base.at(TARGET, 0)
    liked = {user: tuple((user, visit, (x, 1.0)) for visit in range(VISITS)) for user in EVERYBODY}
    averse = {user: tuple((user, visit, (x, 0.0)) for visit in range(VISITS)) for user in EVERYBODY}
    alike = replace(base, replaced=sum(liked.values(), ()))
    apart = replace(base, replaced=sum((averse | {TARGET: liked[TARGET]}).values(), ()))
    whatever = [
        Neighbours("anything", base, replace(base, seed=1), inf),
        Neighbours("tastes", alike, apart, inf),
    ]
    if pair.unit == USER:
        fond, disliked = (replace(base, replaced=side[TARGET]) for side in (liked, averse))
        withdrawn, unknown = (replace(base, silent=frozenset({user})) for user in (TARGET, NEWCOMER))
        once = replace(withdrawn, replaced=liked[TARGET][:1])
        gone = replace(base, absent=frozenset({TARGET}))
        nobody = replace(base, silent=frozenset({*EVERYBODY, NEWCOMER}))
        return [
            Neighbours("removed", fond, gone),
            Neighbours("withdrawn", fond, withdrawn),
            Neighbours("replaced", fond, disliked, 2.0),
            Neighbours("newcomer", base, unknown),
            Neighbours("once", once, withdrawn),
            Neighbours("silence", base, nobody, inf),
            *whatever,
        ]
    centre = CENTRE if domain.low < 0.0 else 0.0
    found = []
    for name, first, second in canaries(domain, dim, 1):
        histories = (
            replace(base, replaced=((TARGET, 0, (side.features[0], float(side.rewards[0] + centre))),))
            for side in (first, second)
        )
        found.append(Neighbours(name, next(histories), next(histories)))
    return [*found, *whatever]


def _visit(running: Running, history: History, users: tuple[str, ...], visits: range) -> None:
    for visit in visits:
        for user in users:
            if user in history.absent:
                running.wait()
            else:
                running.visit(user, *history.at(user, visit))


def _begin(running: Running, history: History, first: int, last: int, snapshot: bool) -> None:
    """Visits, a restart, a newcomer, visits."""
    _visit(running, history, EVERYBODY, range(first))
    running.restart(snapshot)
    _visit(running, history, (NEWCOMER,), range(1))
    _visit(running, history, EVERYBODY, range(first, last))


def life(running: Running, history: History, pair: Pair) -> None:
    """Visits, a restart from the log, a newcomer, a restart from a snapshot, visits."""
    one, two, three = pair.pace
    _begin(running, history, one, two, snapshot=False)
    running.restart(snapshot=True)
    _visit(running, history, EVERYBODY, range(two, three))


def brief(running: Running, history: History, pair: Pair) -> None:
    """The same with one restart, from a snapshot: this scene is played hundreds of times."""
    one, _, three = pair.pace
    _begin(running, history, one, three, snapshot=True)


def put_back(running: Running, history: History, pair: Pair) -> None:
    """A store is copied, goes on, and an hour later the copy is put in its place."""
    one, two, three = pair.pace
    _visit(running, history, EVERYBODY, range(one))
    running.copy()
    _visit(running, history, EVERYBODY, range(one, two))
    running.put_back()
    _visit(running, history, EVERYBODY, range(two, 2 * three))


def forgotten(running: Running, history: History, pair: Pair) -> None:
    """A user is forgotten and returns under the same name."""
    _, two, three = pair.pace
    _visit(running, history, EVERYBODY, range(two))
    if TARGET not in history.absent:
        running.forget(TARGET)
    _visit(running, history, EVERYBODY, range(two, 2 * three))


def printed(running: Running, history: History, pair: Pair) -> None:
    """Two users who are there before the first observation, and a restart."""
    for user in (TARGET, BYSTANDERS[0]):
        running.visit(user, history.at(user, 0)[0], None)
    _visit(running, history, (TARGET, BYSTANDERS[0]), range(2))
    running.restart(snapshot=False)
    _visit(running, history, (TARGET, BYSTANDERS[0]), range(2, 3))


Scene = Callable[[Running, History, Pair], None]


def scenes_of(pair: Pair) -> dict[str, Scene]:
    """The scenes in which two exact twins are compared: none where a trigger needs its noise."""
    if pair.printed:
        return {}
    found: dict[str, Scene] = {"life": life, "put back": put_back}
    return found if pair.grouped else found | {"forgotten": forgotten}
