"""The text that every Python has."""

import sys

import pytest

from selattn.data.sources import embedded_documents


@pytest.fixture(scope="module")
def everything():
    before = set(sys.modules)
    found = list(embedded_documents())
    return found, set(sys.modules) - before


def test_it_has_the_reference_and_the_library(everything):
    found, _ = everything
    text = "\n".join(found)
    assert 'The "assert" statement' in text
    assert sum(document.startswith("module json.decoder\n") for document in found) == 1
    assert "Deserialize ``s``" in text
    assert "def loads(s, *, cls=None" in text


def test_nothing_is_imported_to_read_it(everything):
    _, imported = everything
    assert imported <= {"pydoc_data", "pydoc_data.topics"}
