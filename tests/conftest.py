"""Fixtures for all tests."""

from hypothesis import settings

# The same examples on every machine and every run: a failure can be repeated, a pass means the same.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
