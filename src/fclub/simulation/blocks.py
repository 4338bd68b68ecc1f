"""The compiled loop: the same kernels as the readable one, without leaving compiled code.

The loop is written once and compiled once for every kind of packed state with its kernels.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

from fclub.core.compiling import borrowed, compiled, for_types
from fclub.core.types import Floats, Indices, Matrix
from fclub.environments.world import World, draw_items, draw_reward, draw_user, regret_of
from fclub.protocol.seam import Kernels
from fclub.simulation.by_visit import Tally, note


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


@cache
def _specialise(kernels: Kernels) -> Any:
    """`_play` compiled with these two kernels in place of the names that it leaves open.

    They are put in as globals: kernels in a closure would defeat numba's cache on disk, and
    kernels as arguments too.
    """
    names = {**globals(), "recommend": kernels[0], "feedback": kernels[1]}
    return compiled(FunctionType(_play.__code__, names, "_play"))


def loop_for(kernels: Kernels, *arguments: Any) -> Any:
    """The loop with these kernels, compiled for arguments of these types.

    Called as it is, numba would work out the types of all arrays at every call, which takes longer
    than the first few hundred rounds.
    """
    return for_types(_specialise(kernels), *arguments)
