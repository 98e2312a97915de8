"""A tokenizer that is made once, and a cache that is nobody's."""

import pytest

from selattn.data import read_tokenizer
from tests.data import vocabulary


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def topics():
    return vocabulary.topics()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "pieces.model"
    path.write_bytes(vocabulary.pieces())
    return read_tokenizer(path)
