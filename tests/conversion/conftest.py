import pytest

from tests.conversion.tiny import go, llama_folder


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with a stock Llama and a text, and a conversion of it that was not interrupted."""
    folder = tmp_path_factory.mktemp("conversion")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELATTN_CACHE", str(folder / "cache"))
        llama_folder(folder / "llama")
        go(folder, "whole")
        yield folder
