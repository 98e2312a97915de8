"""Uninitialised memory is filled with NaN here too."""

from tests.ops.conftest import _poisoned_memory  # noqa: F401
