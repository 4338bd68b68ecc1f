"""`fclub`: finds the command's module only when it is called, so that --help answers at once."""

from __future__ import annotations

import sys
from importlib import import_module
from keyword import iskeyword
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from fclub import __version__
from fclub.errors import ExtraMissing, FclubError, InvalidInput
from fclub.own import own_frames

COMMANDS: dict[str, str] = {
    "demo": "The paper's synthetic comparison: all policies, a few seeds, a table and a report.",
    "reproduce": "Regenerate the paper's figures and ours, and say which claims hold.",
    "report": "Build the report of a finished run again: page, plots, tables.",
    "run": "Run policies in an environment, seed by seed, and compare them.",
    "leaderboard": "Rank policies in the recorded suite of worlds; yours among them, if you name it.",
    "policies": "List the policies, their switches and parameters.",
    "data": "Download and verify a data set, or take it from a file.",
    "advise": "Play your ratings and say whether federating would pay, with and without noise.",
    "plan": "Plan releases of a federation: dates, noise, and what to expect.",
    "features": "Make the features of a catalogue's items from ratings.",
    "replay": "What policies would have earned on logged feedback, with confidence intervals.",
    "warm": "Compile all kernels now: a simulation or a server then starts at once.",
    "bench": "Measure the speed of every policy, as ratios within one run.",
    "privacy": "Noise for a budget; what a ledger has spent.",
    "audit": "Attack the privacy of running servers; exit 1 when one leaks more than claimed.",
    "local": "Run a local server: it recommends, learns, and sends sums; private policies add noise.",
    "keys": "Make, list and revoke the keys with which a server is asked.",
    "import": "Let a local server learn from what was shown elsewhere.",
    "store": "Look after the store of a local server.",
    "global": "Run the global server of a federation.",
    "federation": "Let organisations join, pause and leave: an authority, accounts, a kit for each.",
    "identity": "Make or show the key by which a server is known in secure sums.",
    "members": "Show, propose and accept the member list of secure sums.",
    "up": "Run a whole federation on this machine, with simulated visitors.",
}
"""Name and help of every command; its typer app is `app` in fclub.cli.<name>, `_` after a keyword."""

EXTRA = dict.fromkeys(("local", "keys", "import", "store", "global", "federation", "up"), "service")
"""Commands that need more than the package itself, and the extra that brings it."""

EXIT_FAILURE, EXIT_USAGE = 1, 2


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are run or completed, and named until then."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _named(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, *rest = args
        if name in COMMANDS:
            return name, get_command(_import(name).app), rest
        return super().resolve_command(ctx, args)


def _import(name: str) -> Any:
    try:
        return import_module(f"fclub.cli.{_module(name)}")
    except ModuleNotFoundError:
        if name in EXTRA:
            raise ExtraMissing(f"fclub {name}", EXTRA[name]) from None
        raise


def _module(name: str) -> str:
    return f"{name}_" if iskeyword(name) else name.replace("-", "_")


def _named(name: str) -> Any:
    """A stand-in that knows only its help, for the list of commands."""
    stub = typer.Typer(add_completion=False)
    stub.command(name, help=COMMANDS[name])(lambda: None)
    return get_command(stub)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    help="Federated, private, clustered contextual bandits.",
    epilog="Start with: fclub demo",
)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(f"fclub {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point: a named error becomes one line and an exit code, as does a file's or a user's."""
    try:
        app(prog_name="fclub")
    except FclubError as error:
        typer.echo(f"fclub: {error}", err=True)
        sys.exit(exit_code(error))
    except Exception as error:
        told = _in_words(error)
        if told is None:
            raise
        typer.echo(told, err=True)
        sys.exit(EXIT_FAILURE)


def _in_words(error: Exception) -> str | None:
    """What a file's error says, and one in code of one's own with its place there."""
    frames = own_frames(error)
    if frames or type(error).__module__.startswith("numba."):
        return f"{frames}fclub: {type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"fclub: {error.filename}: {error.strerror}"
    return None


def exit_code(error: FclubError) -> int:
    return EXIT_USAGE if isinstance(error, InvalidInput) else EXIT_FAILURE
