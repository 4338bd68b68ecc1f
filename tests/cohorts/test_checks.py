"""Every check holds of the package as it is."""

import pytest
from tests.cohorts.checks import CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_it_holds(name: str) -> None:
    CHECKS[name]()
