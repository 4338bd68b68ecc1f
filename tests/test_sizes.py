"""How large the package may be: its lines, classes, interfaces and folders."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import fclub

ROOT = Path(fclub.__file__).parent

LINES = 48_700
"""Of `src`; to be lowered whenever something goes."""

METHODS, INTERFACE, MODULES = 25, 12, 14


class Module(NamedTuple):
    """Classes by name, and where names come from that it imports."""

    classes: dict[str, ast.ClassDef]
    imported: dict[str, tuple[str, str]]


class Size(NamedTuple):
    """Names of methods and of properties."""

    methods: set[str]
    properties: set[str]


@cache
def module(name: str) -> Module | None:
    path = ROOT.parent.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not name.startswith("fclub") or not file.is_file():
        return None
    tree = ast.parse(file.read_text())
    return Module(
        {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)},
        {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        },
    )


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    words = [one.id for one in node.decorator_list if isinstance(one, ast.Name)]
    return "property" in words or "cached_property" in words


def size(where: str, name: str) -> Size:
    """Of a class with its bases; dunders and bases of other packages aside."""
    found, here = Size(set(), set()), module(where)
    if here is None:
        return found
    if name not in here.classes:
        return size(*here.imported[name]) if name in here.imported else found
    node = here.classes[name]
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(plain, ast.Name):
            more = size(where, plain.id)
            found = Size(found.methods | more.methods, found.properties | more.properties)
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and not one.name.startswith("__"):
            found[is_property(one)].add(one.name)
    return found


def classes() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        where = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        here = module(where.removesuffix(".__init__"))
        assert here is not None
        for name in here.classes:
            yield where, name


def test_classes_are_one_idea_each() -> None:
    """Properties count as methods do."""
    large = {}
    for where, name in classes():
        known, found = f"{where}.{name}".removeprefix("fclub."), size(where, name)
        count = len(found.methods | found.properties)
        if count > METHODS:
            large[known] = count
    assert large == {}


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("fclub.protocol.interfaces.learner", "Learner"),
        ("fclub.protocol.interfaces.exchange", "LocalExchange"),
        ("fclub.protocol.interfaces.exchange", "GlobalExchange"),
    ],
)
def test_interfaces_can_be_learned(where: str, name: str) -> None:
    """What somebody has to write for a learner or an exchange of their own; properties are data."""
    assert 0 < len(size(where, name).methods) <= INTERFACE


def test_packages_have_few_modules() -> None:
    large = {}
    for folder in (path.parent for path in ROOT.rglob("__init__.py")):
        name = str(folder.relative_to(ROOT))
        count = len({*folder.glob("*.py")} - {*folder.glob("__*__.py")})
        if name != "cli" and count > MODULES:
            large[name] = count
    assert large == {}


def test_lines_of_the_source_are_bounded() -> None:
    lines = sum(path.read_text().count("\n") for path in ROOT.rglob("*.py"))
    assert LINES // 2 < lines <= LINES
