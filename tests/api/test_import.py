"""`import fclub` is light, and everything public is reachable after it."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import fclub
from fclub.errors import ExtraMissing


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_bare_import_reaches_everything() -> None:
    done = python(
        "import fclub\nfor name in fclub.__all__: getattr(fclub, name)\nfclub.errors.FclubError"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["numpy", "numba", "httpx", "matplotlib", "msgspec"])
def test_a_bare_import_is_light(module: str) -> None:
    assert python(f"import sys, fclub; sys.exit({module!r} in sys.modules)").returncode == 0


def test_type_checkers_see_what_is_there() -> None:
    """The imports that only they read, the names imported when used, and `__all__` agree."""
    source = ast.parse(Path(inspect.getfile(fclub)).read_text())
    block = next(node for node in source.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == fclub._HOMES | dict.fromkeys(fclub._MODULES, "fclub")
    assert set(fclub.__all__) == {*seen, "__version__"}
    assert (Path(inspect.getfile(fclub)).parent / "py.typed").exists()


def test_unknown_names_are_missing_as_usual() -> None:
    with pytest.raises(AttributeError, match="Polcy"):
        fclub.Polcy  # type: ignore[attr-defined]  # noqa: B018


WITHOUT = "import sys; sys.modules |= dict.fromkeys(('httpx', 'starlette', 'nats', 'httptools')); "


EACH = """
from fclub.cli.main import main
for command in ("local", "global", "up"):
    sys.argv = ["fclub", command]
    try:
        main()
    except SystemExit as end:
        print(command, end.code)
"""


def test_a_command_without_its_extra_says_what_to_install() -> None:
    done = python(WITHOUT + EACH)
    assert done.stdout.splitlines() == ["local 1", "global 1", "up 1"]
    said = [f"fclub: {ExtraMissing(f'fclub {name}', 'service')}" for name in ("local", "global", "up")]
    assert done.stderr.splitlines() == said


def test_a_client_without_its_extra_says_what_to_install() -> None:
    done = python(f"{WITHOUT}import fclub; fclub.Client('http://localhost', 'token')")
    assert "ExtraMissing: fclub.Client needs the extra service: pip install" in done.stderr
