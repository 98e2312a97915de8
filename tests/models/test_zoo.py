"""Where the zoo lies (the variable, else the checkout), and names without a model."""

import re
from pathlib import Path

import pytest

from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, zoo
from selattn.models.loading import find_folder
from selattn.models.zoo import zoo_folder, zoo_models


def model(folder, name):
    (folder / name).mkdir(parents=True)
    (folder / name / "config.json").write_text("{}")
    return folder / name


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The site-packages folder of an installed wheel."""
    monkeypatch.delenv("SELATTN_ZOO", raising=False)
    monkeypatch.setattr(zoo, "CHECKOUT", tmp_path / "site-packages")
    return zoo.CHECKOUT


def test_a_checkout_has_it_beside_the_package(monkeypatch):
    monkeypatch.delenv("SELATTN_ZOO", raising=False)
    assert zoo_folder() == Path(__file__).parents[2] / "zoo"


def test_every_model_of_it_gives_a_cache(monkeypatch):
    monkeypatch.delenv("SELATTN_ZOO", raising=False)
    assert zoo_models()
    for folder in zoo_models().values():
        assert SelectiveConfig.from_pretrained(folder).use_cache


HOW = "take the folder zoo/ from selattn's repository or its sdist, and set SELATTN_ZOO to its path"


def test_an_installed_package_says_where_it_is_to_be_had(installed, capsys):
    model(installed / "zoo", "memory")  # another package of that name
    assert zoo_models() == {}
    with pytest.raises(SelattnError) as caught:
        find_folder("zoo:memory")
    assert str(caught.value) == f"selattn is installed without the zoo: {HOW}"
    for command in (["zoo"], ["info", "zoo:memory"]):
        assert main(command) == 2
        assert capsys.readouterr() == ("", f"selattn: error: {caught.value}\n")


def test_the_variable_comes_first(tmp_path, monkeypatch):
    mine = model(tmp_path / "mine", "own")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SELATTN_ZOO", "~/mine")
    assert find_folder("zoo:own") == mine
    said = "unknown model zoo:memory in ~/mine (SELATTN_ZOO); there are own"
    with pytest.raises(SelattnError, match=re.escape(said)):
        find_folder("zoo:memory")
    monkeypatch.setenv("SELATTN_ZOO", "")
    assert find_folder("zoo:memory") == zoo.CHECKOUT / "zoo" / "memory"


def test_a_variable_that_names_no_zoo_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_ZOO", str(tmp_path / "elsewhere"))
    with pytest.raises(SelattnError) as caught:
        find_folder("zoo:memory")
    assert str(caught.value) == f"there is no zoo at {tmp_path / 'elsewhere'}: {HOW}"


def test_a_model_without_a_record_is_listed(tmp_path, monkeypatch, capsys):
    (model(tmp_path, "own") / "config.json").write_text('{"max_position_embeddings": 512}')
    monkeypatch.setenv("SELATTN_ZOO", str(tmp_path))
    assert main(["zoo"]) == 0
    assert any(
        line.split() == ["zoo:own", "?", "512", "?", "?", "0.0"] for line in capsys.readouterr().out.splitlines()
    )
