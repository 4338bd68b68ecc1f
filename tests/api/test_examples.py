"""Everything public has an example in its docstring, and the examples do what they say."""

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fclub
from fclub import checks

PUBLIC = {name: getattr(fclub, name) for name in fclub.__all__ if name != "__version__"}
PUBLIC |= {f"checks.{name}": getattr(checks, name) for name in checks.__all__}
LIVE = ("Client", "AsyncClient")
"""Their examples talk to a server, `url`, which knows `token`."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    pytest.importorskip("starlette")
    from tests.service.conftest import TOKEN, local_settings, serving

    from fclub.service.serve import local_app
    from fclub.service.settings import Model

    folder: Path = tmp_path_factory.mktemp("live")
    with serving(local_app(local_settings(folder, model=Model(dim=2)))[0]) as client:
        yield {"url": str(client.base_url), "token": TOKEN}


@pytest.mark.parametrize("name", PUBLIC)
def test_examples(name: str, request: pytest.FixtureRequest) -> None:
    known: dict[str, Any] = request.getfixturevalue("live") if name in LIVE else {}
    module = inspect.getmodule(PUBLIC[name])
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(recurse=not inspect.ismodule(PUBLIC[name])).find(
        PUBLIC[name], name, module=module, globs=dict(known)
    ):
        runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0
