"""The compiled loop: the same kernels as the readable one, without leaving compiled code.

The loop is written once and compiled once for every kind of packed state.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np

from fclub.core import club, known_types, models, sclub
from fclub.core.compiling import borrowed, compiled, for_types, inner
from fclub.core.paper import federation as fed
from fclub.core.paper.federation import download_due, receive_upload, take_download
from fclub.core.plus import rounds as mixture_rounds
from fclub.core.statistics import observe
from fclub.core.types import Floats, Indices, Matrix, Vector
from fclub.environments.world import World, draw_items, draw_reward, draw_user, regret_of
from fclub.policies.federated import Federation
from fclub.simulation.by_visit import Tally, note


@inner
def _federated_recommend(state: Federation, user: int, items: Matrix) -> int:
    c = state.cluster_of[state.row_of[user]]
    return fed.recommend(state.local, c, items, state.rules)


@inner
def _federated_feedback(state: Federation, user: int, x: Vector, y: float) -> None:
    """`LocalServer.observe` and `GlobalServer._upload` with an upload that goes nowhere."""
    row = state.row_of[user]
    c = state.cluster_of[row]
    observe(state.users, row, x, y)
    if fed.absorb(state.local, c, x, y, state.rules):
        d = x.shape[0]
        gram, moment = np.empty((d, d)), np.empty(d)
        side = d + 1 if state.rules.noise_std > 0.0 else 0
        gaussian = np.empty((side, side))
        for i in range(side):
            for j in range(side):
                gaussian[i, j] = state.noise.standard_normal()
        count = fed.release(state.local, c, gaussian, state.rules, gram, moment)
        receive_upload(state.world, c, gram, moment, count, state.rules)
        state.events[0] += 1
        k = state.world.group[c]
        for position in range(state.world.starts[k], state.world.starts[k + 1]):
            other = state.world.members[position]
            if download_due(state.world, other, state.rules):
                count = take_download(state.world, other, gram, moment)
                fed.add_statistics(state.local, other, gram, moment, count)
                state.events[1] += 1


def _play(
    state: Any,
    world: World,
    items: Matrix,
    rounds: int,
    totals: Floats,
    tally: Tally,
    choices: Indices,
) -> None:
    """Play rounds; add regret and reward to `totals`; note choices if there is room for them."""
    state, world, items, tally = borrowed(state), borrowed(world), borrowed(items), borrowed(tally)
    for t in range(rounds):
        user = draw_user(world)
        draw_items(world, user, items)
        index = recommend(state, user, items)  # type: ignore[name-defined]  # noqa: F821
        regret = regret_of(world, user, items, index)
        totals[0] += regret
        note(tally, user, regret)
        y = draw_reward(world, user, items, index)
        totals[1] += y
        feedback(state, user, items[index], y)  # type: ignore[name-defined]  # noqa: F821
        if choices.shape[0] > 0:
            choices[t] = index


def _specialise(recommend: Any, feedback: Any) -> Any:
    """`_play` compiled with these two kernels in place of the names that it leaves open.

    They are put in as globals: kernels in a closure would defeat numba's cache on disk, and
    kernels as arguments too.
    """
    names = {**globals(), "recommend": recommend, "feedback": feedback}
    return compiled(FunctionType(_play.__code__, names, "_play"))


PLAY: dict[type, Any] = {
    models.Independent: _specialise(models.recommend, models.feedback),
    club.Club: _specialise(club.recommend, club.feedback),
    sclub.Sclub: _specialise(sclub.recommend, sclub.feedback),
    known_types.KnownTypes: _specialise(known_types.recommend, known_types.feedback),
    mixture_rounds.MixtureRound: _specialise(mixture_rounds.recommend, mixture_rounds.feedback),
    Federation: _specialise(_federated_recommend, _federated_feedback),
}
"""The compiled loop for every kind of packed state."""


def loop_for(state: Any, *arguments: Any) -> Any:
    """The loop compiled for arguments of these types.

    Called as it is, numba would work out the types of all arrays at every call, which takes longer
    than the first few hundred rounds.
    """
    return for_types(PLAY[type(state)], state, *arguments)
