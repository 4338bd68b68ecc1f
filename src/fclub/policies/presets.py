"""Constants of the paper's policies by name: `fclub-dc@printed`, `fclub-dc@published`.

Without a preset a policy plays at its *tuned* constants, those that `benchmarks/tune.py` found best.
The paper prints β of Lemma 1 without a factor, and no values of α₁ and α₂; its published code has
α₁ = 1.5, α₂ = 2, a ridge of 2, and multiplies β by 0.005.
"""

from __future__ import annotations

from fclub.errors import InvalidSetting, UnknownName
from fclub.parameters import Parameter
from fclub.protocol.rows.paper import ROWS

PRESETS: dict[str, dict[str, Parameter]] = {
    "printed": {"exploration": 1.0, "deletion": 1.5, "merging": 2.0},
    "published": {"exploration": 0.005, "deletion": 1.5, "merging": 2.0, "ridge": 2.0},
}
PAPER = {row.name: row for row in ROWS}


def split_preset(name: str) -> tuple[str, dict[str, Parameter]]:
    """A policy's name without its preset, and what the preset sets of that policy's parameters.

    >>> split_preset("homo-dc@printed")
    ('homo-dc', {'exploration': 1.0})
    >>> split_preset("linucb")
    ('linucb', {})
    """
    policy, mark, preset = name.partition("@")
    if not mark:
        return name, {}
    if policy not in PAPER:
        raise InvalidSetting(f"{name}: only {', '.join(PAPER)} have presets", name)
    if preset not in PRESETS:
        raise UnknownName("preset", preset, PRESETS)
    known = PAPER[policy]().get_params()
    return policy, {key: value for key, value in PRESETS[preset].items() if key in known}
