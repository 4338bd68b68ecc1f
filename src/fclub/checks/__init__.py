"""Public conformance checks: what every policy and every environment must do, ours or yours.

>>> from fclub import make_policy
>>> from fclub.checks import check_policy
>>> check_policy(make_policy("linucb"))

A failed check raises AssertionError with the reason, so they read well in anybody's test suite. One
module per kind of thing that can be registered.
"""

from fclub.checks.environment import check_environment
from fclub.checks.policy import check_policy

__all__ = ["check_environment", "check_policy"]
