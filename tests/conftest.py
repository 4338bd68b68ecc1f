"""Settings of all tests."""

from hypothesis import settings

# The first call of a kernel may compile it, so there is no deadline; the same cases on every run, so
# that a red run is a red change.
settings.register_profile("fclub", deadline=None, derandomize=True)
settings.load_profile("fclub")
