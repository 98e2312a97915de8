"""A tokenizer that is trained once, and a cache that is nobody's."""

import pytest

from selattn.data import Tokenizer
from selattn.data.tokenizer import train_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def topics():
    from pydoc_data.topics import topics

    return [text for _, text in sorted(topics.items())][:20]


@pytest.fixture(scope="session")
def tokenizer(topics, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "pieces.model"
    path.write_bytes(train_model(topics, 500))
    return Tokenizer(path)
