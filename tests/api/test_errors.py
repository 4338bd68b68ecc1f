"""One tree of errors in one module, and every one of them crosses processes."""

import importlib
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import fclub
from fclub import errors


def tree(kind: type[errors.FclubError]) -> Iterator[type[errors.FclubError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


def test_all_errors_are_defined_in_one_module() -> None:
    pytest.importorskip("starlette")
    for module in pkgutil.walk_packages(fclub.__path__, "fclub."):
        if module.name != "fclub.__main__":
            importlib.import_module(module.name)
    ours = [kind for kind in tree(errors.FclubError) if kind.__module__.startswith("fclub")]
    assert {kind.__module__ for kind in ours} == {"fclub.errors"}
    assert all(kind.__doc__ for kind in ours)


MADE = (
    errors.InvalidReward("too much", 3.0),
    errors.UnknownName("policy", "lnucb", ["linucb", "club"]),
    errors.InvalidRatings("ratings.csv", 7, "the line is empty"),
    errors.ExtraMissing("fclub.Client", "service"),
    errors.RequestFailed("404: no such thing", 404),
)


def test_every_refusal_of_a_request_has_a_status() -> None:
    gate = pytest.importorskip("fclub.service.http.gate")
    for kind in tree(errors.FclubError):
        if issubclass(kind, errors.RequestRefused | errors.InvalidInput | errors.NotStored):
            assert (gate.status_for(kind) is None) == (kind is errors.RequestRefused), kind
    assert gate.status_for(errors.UnknownDecision) == gate.status_for(errors.NotFound) == 404
    assert gate.status_for(errors.StoreInUse) is None
    assert gate.status_of(errors.StoreInUse("a")) == 500


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_crosses_processes(error: errors.FclubError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
