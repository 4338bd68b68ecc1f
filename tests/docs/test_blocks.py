"""Every block of code in the documentation runs: copied, pasted, in the order of its page."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, Block, blocks, name_of
from tests.docs.reader import Reader, build_wheel, fresh_environment

from fclub.service.link.broker import free_port

RUN = {"sh", "python"}
CHECKOUT = ("Makefile", "pyproject.toml", "README.md", "src", "examples", "deploy")
ENDLESS = re.compile(r"^(fclub up(?!.*(?:--visits|&$))[^#\n]*[^#\s])", re.MULTILINE)
"""`fclub up` that would go on until Ctrl-C, in the foreground."""

WITH_CODE = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a machine on which pip fetches nothing: the packages are there already.

    `make` only says what it would do: its targets set up environments and run these very tests.
    """
    folder = tmp_path_factory.mktemp("clean")
    build_wheel(folder / "wheels")
    programs = fresh_environment(folder / "environment")
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder / "wheels"),
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "MAKEFLAGS": "n",
    }


def unpack_films(folder: Path) -> None:
    """A stand-in for MovieLens of the same layout, which a reader of the tutorial has unpacked."""
    folder.mkdir()
    films = [f'{k},"Film, The {k} ({1980 + k % 40})",Drama' for k in range(60)]
    (folder / "movies.csv").write_text("\n".join(["movieId,title,genres", *films, ""]))
    rated = [
        f"{user},{film},{5.0 if (user + film) % 3 == 0 else 2.5},0"
        for user in range(210)
        for film in range(60)
        if (7 * user + 11 * film) % 4
    ]
    (folder / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rated, ""]))


def short(block: Block) -> Block:
    """Visitors stop after a while, and the port is one that is free."""
    text = ENDLESS.sub(r"\1 --visits 50", block.text)
    return block._replace(text=text.replace("8100", str(free_port())))


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_every_block_runs(page: Path, clean: dict[str, str], tmp_path: Path) -> None:
    for name in CHECKOUT:
        (tmp_path / name).symlink_to(ROOT / name)
    for lock in ROOT.glob("*.lock"):
        (tmp_path / lock.name).symlink_to(lock)
    unpack_films(tmp_path / "ml-latest-small")
    install = Block("sh", "pip install --quiet --force-reinstall --no-deps fclub")
    with Reader(tmp_path, clean) as reader:
        for block in [install, *blocks(page)]:
            if block.language in RUN:
                reader.follow(short(block))
    for place in ("Traceback", "Error"):
        assert place not in reader.output


def test_no_block_is_left_out() -> None:
    """What has a language is code, and runs, or settings, which are read; the rest are drawings."""
    languages = {block.language for page in PAGES for block in blocks(page)}
    assert languages <= RUN | {"", "toml"}
    for page in PAGES:
        for block in blocks(page):
            if block.language == "toml":
                assert tomllib.loads(block.text)
    drawn = [block.text for page in PAGES for block in blocks(page) if not block.language]
    assert not [
        text for text in drawn if re.search(r"^\s*(\$ |fclub |pip |import )", text, re.MULTILINE)
    ]


def test_only_visitors_without_end_are_shortened() -> None:
    def shortened(text: str) -> str:
        return short(Block("sh", text)).text

    assert shortened("fclub up --servers 3     # all") == "fclub up --servers 3 --visits 50     # all"
    for same in ("fclub up --visits 9", "fclub up --dir a &", "fclub run", "fclub --help"):
        assert shortened(same) == same
