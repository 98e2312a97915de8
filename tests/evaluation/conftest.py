"""A cache that is nobody's."""

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
