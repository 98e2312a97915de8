"""An experiment that takes a second, for tests of the engine."""

import pytest

from tests.lab.tiny import only


@pytest.fixture
def only_tiny(monkeypatch):
    """There is no other experiment."""
    only(monkeypatch)
