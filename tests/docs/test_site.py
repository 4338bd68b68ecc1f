"""The documentation says what the code does: reference pages, commands shown, blocks, links."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.pages import PAGES, ROOT, blocks

from fclub.cli.main import COMMANDS

pytest.importorskip("starlette")

INLINE = re.compile(r"`(fclub [^`]+)`")


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


@pytest.mark.parametrize("name", GENERATOR.PAGES)
def test_reference_pages_are_those_of_the_code(name: str) -> None:
    """`python docs/generate.py` makes them."""
    assert (GENERATOR.REFERENCE / name).read_text() == GENERATOR.PAGES[name]().rstrip() + "\n"


def commands(page: Path) -> list[str]:
    """Every use of `fclub` in a shell block or between backticks."""
    shell = "\n".join(block.text for block in blocks(page) if block.language == "sh")
    shell = shell.replace("\\\n", " ")
    lines = [re.split(" [#&|]", line)[0].strip() for line in shell.splitlines()]
    lines = [line for line in lines if line.startswith("fclub ")]
    return lines + [line for line in INLINE.findall(page.read_text()) if "COMMAND" not in line]


SHOWN = sorted({(line, page.name) for page in PAGES for line in commands(page)})


@pytest.mark.parametrize(("line", "page"), SHOWN)
def test_every_command_that_is_shown_exists(line: str, page: str) -> None:
    _, *words = shlex.split(line)
    if words[0] in ("--help", "--version"):
        return
    assert words[0] in COMMANDS, page
    command = GENERATOR.command_of(words[0])
    inside = getattr(command, "commands", None)
    if inside is not None:
        assert words[1] in inside, page
        command = inside[words[1]]
    known = {name for p in command.params for name in [*p.opts, *p.secondary_opts]}
    for option in (word.partition("=")[0] for word in words[1:] if word.startswith("-")):
        assert option in known | {"--help"}, page


def test_files_that_the_readme_shows_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Broken links, missing pages and pages that no menu leads to are warnings, hence errors."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference" / "python" / "index.html").exists()
