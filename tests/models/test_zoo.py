"""Where the zoo lies (the variable, else inside an installed package, else beside it), and names without a model."""

import re

import pytest

from lab.zoo import make_zoo
from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, zoo
from selattn.models.loading import find_folder
from selattn.models.zoo import zoo_folder, zoo_models
from selattn.utils.progress import Progress


def model(folder, name):
    (folder / name).mkdir(parents=True)
    (folder / name / "config.json").write_text("{}")
    return folder / name


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package in a site-packages folder, with the zoo that a wheel has."""
    monkeypatch.delenv("SELATTN_ZOO", raising=False)
    monkeypatch.setattr(zoo, "SHIPPED", tmp_path / "site-packages" / "selattn" / "zoo")
    model(zoo.SHIPPED, "memory")
    return zoo.SHIPPED


def test_a_repository_has_it_beside_the_package(monkeypatch):
    monkeypatch.delenv("SELATTN_ZOO", raising=False)
    assert not zoo.SHIPPED.exists()
    assert zoo_folder() == zoo.SHIPPED.parents[1] / "zoo"


def test_every_model_of_it_gives_a_cache(monkeypatch):
    monkeypatch.delenv("SELATTN_ZOO", raising=False)
    assert zoo_models()
    for folder in zoo_models().values():
        assert SelectiveConfig.from_pretrained(folder).use_cache


def test_an_installed_package_has_it_inside(installed):
    model(installed.parents[1] / "zoo", "stranger")  # another package of that name
    assert zoo_models() == {"memory": installed / "memory"}
    assert find_folder("zoo:memory") == installed / "memory"


def test_the_variable_comes_first(installed, tmp_path, monkeypatch):
    mine = model(tmp_path / "mine", "own")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SELATTN_ZOO", "~/mine")
    assert find_folder("zoo:own") == mine
    said = "unknown model zoo:memory in ~/mine (SELATTN_ZOO); there are own"
    with pytest.raises(SelattnError, match=re.escape(said)):
        find_folder("zoo:memory")
    monkeypatch.setenv("SELATTN_ZOO", "")
    assert find_folder("zoo:memory") == installed / "memory"


@pytest.mark.parametrize(
    ("chosen", "advice"),
    [("elsewhere", "name another folder in SELATTN_ZOO, or unset it"), ("", "install selattn, or set SELATTN_ZOO")],
)
def test_no_zoo_is_one_line(tmp_path, monkeypatch, chosen, advice):
    monkeypatch.setattr(zoo, "SHIPPED", tmp_path / "selattn" / "zoo")
    monkeypatch.setenv("SELATTN_ZOO", chosen and str(tmp_path / chosen))
    with pytest.raises(SelattnError, match=f"there is no zoo at .*: {advice}$"):
        find_folder("zoo:memory")


def test_nothing_is_made_inside_an_installed_package(installed, tmp_path, monkeypatch):
    monkeypatch.setattr("lab.zoo.SHIPPED", installed)
    with pytest.raises(SelattnError, match="belongs to the installed package: set SELATTN_ZOO"):
        make_zoo(["selective"], None, [], tmp_path / "runs", Progress())
    assert not (tmp_path / "runs").exists()


def test_a_model_without_a_record_is_listed(tmp_path, monkeypatch, capsys):
    (model(tmp_path, "own") / "config.json").write_text('{"max_position_embeddings": 512}')
    monkeypatch.setenv("SELATTN_ZOO", str(tmp_path))
    assert main(["zoo"]) == 0
    assert any(
        line.split() == ["zoo:own", "?", "512", "?", "?", "0.0"] for line in capsys.readouterr().out.splitlines()
    )
