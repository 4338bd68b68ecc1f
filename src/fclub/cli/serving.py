"""What `fclub local` and `fclub global` share: settings, logs, and errors in the form of the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from fclub.cli.main import exit_code
from fclub.errors import FclubError, InvalidInput
from fclub.service.monitoring import log, set_up_logs
from fclub.service.settings import Settings, load_settings, wanted_log_format


def run_server(
    kind: type[Settings],
    config: Path | None,
    options: Callable[[], Mapping[str, Any]],
    run: Callable[[Settings, Callable[[], Settings]], None],
) -> None:
    """Run until a signal; where the log is JSON, so is the error that ends it.

    `run` gets the settings, and what reads them again, the options too: they may come from a file.
    """

    def load() -> Settings:
        return load_settings(kind, config, options())

    try:
        style = wanted_log_format(config, options())
    except InvalidInput:
        style = wanted_log_format(config, {})
    set_up_logs(style)
    try:
        settings = load()
        set_up_logs(settings.log_format, settings.log_level)
        run(settings, load)
    except FclubError as error:
        if style != "json":
            raise
        log.critical(str(error))
        raise typer.Exit(exit_code(error)) from None
