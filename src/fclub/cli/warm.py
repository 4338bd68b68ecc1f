"""`fclub warm`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import joblib
import typer
from rich.console import Console

from fclub.cli.console import compile_first
from fclub.experiments.run.experiment import Setting
from fclub.policies.registry import POLICIES, make_policy
from fclub.protocol.families import FAMILIES

app = typer.Typer(add_completion=False)

DIM = 3


@app.command("warm", epilog="Example: fclub warm --policy cdp-fclub-plus")
def warm(
    policy: Annotated[list[str] | None, typer.Option(help="A policy; repeatable. All.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Policies at a time. One per core.")] = None,
) -> None:
    """Compile all kernels now: a simulation or a server then starts at once."""
    names = policy or [*POLICIES]
    for name in names:
        make_policy(name)
    compile_first({name: Setting.of(name, {}) for name in names}, jobs or joblib.cpu_count())
    if find_spec("nats") is not None:  # servers need the extra `service`
        from fclub.cli.up import compile_live
        from fclub.service.settings import Model

        for name in names:
            if name in FAMILIES:
                compile_live(Model(policy=name, dim=DIM), Console(stderr=True))
