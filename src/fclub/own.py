"""Classes of one's own by reference: `path.py:Class` or `module:Class` in place of a name.

Nothing that was read from a file is ever resolved here: only what a person has typed is imported.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
import sysconfig
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import format_exception
from types import ModuleType
from typing import TypeVar

from fclub.errors import InvalidSetting, UnknownName

Kind = TypeVar("Kind")


def is_reference(name: str) -> bool:
    return ":" in name


def find_class(reference: str, kind: type[Kind]) -> type[Kind]:
    """The class that is meant; it must be a complete one of this kind."""
    module, name = _module(reference), reference.rpartition(":")[2]
    known = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, kind) and value is not kind
    }
    if name not in known:
        raise UnknownName(f"{kind.__name__} in {reference.rpartition(':')[0]}", name, known)
    if missing := getattr(known[name], "__abstractmethods__", ()):
        raise InvalidSetting(f"{reference} lacks {', '.join(sorted(missing))}", reference)
    return known[name]


def instance_of(value: object, kind: type[Kind]) -> Kind:
    """The object that was given; a class in its place is refused with the cure."""
    if isinstance(value, kind):
        return value
    got = f"a class; call it: {value.__name__}()" if isinstance(value, type) else repr(value)
    raise InvalidSetting(f"expected a name or an object of {kind.__name__}, got {got}", value)


def digest_of(reference: str) -> str:
    """Of the file in which the class is, so that a result is not taken for that of other code."""
    source = inspect.getsourcefile(_module(reference))
    return _digest(Path(source)) if source else ""


_FRAME = re.compile(r'^  File "([^"]+)", line .*\n(?:    .*\n)*', re.MULTILINE)


def own_frames(error: BaseException) -> str:
    """What a traceback, a worker's too, says of files of one's own; empty if there is none in it."""
    found = _FRAME.finditer("".join(format_exception(error)))
    return "".join(frame[0] for frame in found if _is_own(Path(frame[1])))


def _is_own(path: Path) -> bool:
    known = Path(__file__).parent, Path(sysconfig.get_path("stdlib"))
    installed = "site-packages" in path.parts or any(one in path.parents for one in known)
    return path.is_file() and not installed


def _module(reference: str) -> ModuleType:
    place = reference.rpartition(":")[0]
    return _load(Path(place)) if place.endswith(".py") else _import(place)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _load(path: Path) -> ModuleType:
    """Once for each content; modules beside the file can be imported by it, as by a script."""
    if not path.is_file():
        raise InvalidSetting(f"there is no file {path}", str(path))
    name = f"fclub_own_{path.stem}_{_digest(path)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    _look_in(path.resolve().parent)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(name: str) -> ModuleType:
    _look_in(Path.cwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidSetting(f"there is no module {name}", name) from None
        raise


def _look_in(folder: Path) -> None:
    if os.fspath(folder) not in sys.path:
        sys.path.insert(0, os.fspath(folder))
