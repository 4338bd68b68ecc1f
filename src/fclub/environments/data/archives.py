"""The one file that matters, wherever it is: named directly, in a folder, in a zip or tar archive."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from fclub.errors import DataMissing, InvalidFile


def ratings_inside(source: Path, names: Sequence[str], scratch: Path) -> Path:
    """The file with one of these names in a folder or archive (unpacked to `scratch`), or the file."""
    if source.is_dir():
        found = _pick((str(p) for p in sorted(source.rglob("*")) if p.is_file()), names)
        return Path(_named(source, found, names))
    if not source.is_file():
        raise DataMissing(f"there is no file or folder {source}")
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                member = _named(source, _pick(archive.namelist(), names), names)
                return _unpack(archive.open(member), member, scratch)
        if tarfile.is_tarfile(source):
            with tarfile.open(source) as bundle:
                member = _named(source, _pick(bundle.getnames(), names), names)
                content = bundle.extractfile(member)
                if content is None:
                    raise InvalidFile(f"{member} in {source} is not a file")
                return _unpack(content, member, scratch)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise InvalidFile(f"{source} is a damaged archive: {error}") from None
    return source


def _pick(members: Iterable[str], names: Sequence[str]) -> str | None:
    """The least deep member with a wanted name."""
    fitting = [m for m in members if m.rsplit("/", 1)[-1] in names]
    return min(fitting, key=lambda m: (m.count("/"), m), default=None)


def _named(source: Path, found: str | None, names: Sequence[str]) -> str:
    if found is None:
        raise InvalidFile(f"{source} holds no {' or '.join(names)}")
    return found


def _unpack(content: IO[bytes], member: str, scratch: Path) -> Path:
    target = scratch / member.rsplit("/", 1)[-1]
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
    return target
