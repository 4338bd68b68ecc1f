"""docs/reproduction.md is about the policies as they play today."""

import importlib.util
from types import ModuleType

import pytest
from tests.docs.pages import ROOT

RECORD = """docs/reproduction.md is stale: these policies play otherwise than when it was made: {}.
Run `fclub reproduce all`, copy out/reproduce/findings.md over the page, and record the digests with
`python docs/digests.py`."""


@pytest.fixture(scope="module")
def digests() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digests", ROOT / "docs" / "digests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_page_is_not_stale(digests: ModuleType) -> None:
    changed = digests.stale(digests.load(), digests.compute())
    assert not changed, RECORD.format(", ".join(changed))


def test_the_page_is_not_stale_about_one_policy(digests: ModuleType) -> None:
    """The quick part: the others' compilation takes minutes where nothing is compiled yet."""
    now = digests.digest(digests.reported()["fclub-dc"])
    assert not digests.stale(digests.load(), {"fclub-dc": now}), RECORD.format("fclub-dc")


def test_other_choices_are_noticed(digests: ModuleType) -> None:
    settings = digests.reported()
    tuned, published = (digests.digest(settings[f"fclub-dc{p}"]) for p in ("", "@published"))
    assert digests.stale({"fclub-dc": tuned}, {"fclub-dc": published, "new": "0"}) == ["fclub-dc"]
    assert digests.stale({"fclub-dc": tuned, "old": "0"}, {"fclub-dc": tuned}) == []
    assert digests.missing({"fclub-dc": tuned}) == [label for label in settings if label != "fclub-dc"]
