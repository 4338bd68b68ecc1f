"""Functions on the path of a release do not change without a look at the statement they implement.

`python tests/privacy/test_statements.py` records the present functions. Do so after you have read the
statement of each function that has changed, and found that it still does what is proved there.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import textwrap
import tokenize
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("statements.json")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
STATEMENTS: dict[str, dict[str, str]] = json.loads(RECORD.read_text())


def found(name: str) -> Any:
    module, _, path = name.partition(":")
    thing: Any = import_module(module)
    for part in path.split("."):
        thing = inspect.getattr_static(thing, part)
    for wrapper in ("fget", "func", "__func__", "__wrapped__"):
        thing = getattr(thing, wrapper, thing)
    return thing


def digest(name: str) -> str:
    """Of the code alone: comments, layout and docstrings may change."""
    lines = io.StringIO(textwrap.dedent(inspect.getsource(found(name))))
    code, begins = [], True
    for token in tokenize.generate_tokens(lines.readline):
        layout = token.type in LAYOUT
        if not layout and not (begins and token.type == tokenize.STRING):
            code.append(token.string)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = layout
    return sha256("\n".join(code).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_function_is_what_it_was_when_its_statement_was_read(name: str) -> None:
    statement = STATEMENTS[name]["statement"]
    assert digest(name) == STATEMENTS[name]["digest"], (
        f"{name} has changed. It implements: {statement}. Read that, and if it still does, record it: "
        "python tests/privacy/test_statements.py"
    )


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_where_it_is_said_to_be(name: str) -> None:
    page, _, heading = STATEMENTS[name]["statement"].partition("#")
    heads = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    assert heading in heads


if __name__ == "__main__":
    for name, entry in STATEMENTS.items():
        entry["digest"] = digest(name)
    RECORD.write_text(json.dumps(STATEMENTS, indent=2, ensure_ascii=False) + "\n")
