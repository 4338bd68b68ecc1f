"""The examples in public docstrings do what they say."""

import doctest
import inspect

import pytest

import fclub
from fclub import checks

PUBLIC = {name: getattr(fclub, name) for name in fclub.__all__ if name != "__version__"}
PUBLIC |= {f"checks.{name}": getattr(checks, name) for name in checks.__all__}


@pytest.mark.parametrize("name", PUBLIC)
def test_examples(name: str) -> None:
    module = inspect.getmodule(PUBLIC[name])
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(recurse=not inspect.ismodule(PUBLIC[name])).find(
        PUBLIC[name], name, module=module, globs={}
    ):
        runner.run(test)
    assert runner.failures == 0
