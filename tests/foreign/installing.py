"""Installs the package beside this module into a folder, without a network."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PACKAGE, NAME = Path(__file__).parent, "shared-mean"
SOURCE = PACKAGE / "src" / "shared_mean.py"


def register(folder: Path, name: str, learners: dict[str, str]) -> None:
    """What an installer leaves of a package beside its modules."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}\n" for key, value in learners.items()]
    (info / "entry_points.txt").write_text("".join(["[fclub.learners]\n", *lines]))


def install_package(folder: Path) -> Path:
    folder.mkdir()
    (folder / SOURCE.name).write_text(SOURCE.read_text())
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    register(folder, project["name"], project["entry-points"]["fclub.learners"])
    return folder


def remove() -> None:
    """Forget its module, so that the next test finds its own copy."""
    sys.modules.pop(SOURCE.stem, None)
