"""`selattn info`: the same facts as tables and as JSON."""

import json
import re
import tomllib
from pathlib import Path

import torch

import selattn
from selattn.cli.main import main
from selattn.ops.backends import dispatch
from selattn.utils import records

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_json(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["selattn"] == selattn.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["machine"]["cuda"] is torch.cuda.is_available()
    assert found["backends"] == dispatch.backends()
    assert found["backends"]["reference"] is None


def test_tables_say_the_same(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(dispatch, "backends", lambda: {"plain": None, "fast": "needs a GPU"})
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    rows = dict(re.split(" {2,}", line.strip(), maxsplit=1) for line in out.splitlines() if "  " in line.strip())
    assert rows["plain"] == "available"
    assert rows["fast"] == "needs a GPU"
    assert rows["torch"] == torch.__version__
    assert rows["threads"] == str(torch.get_num_threads())  # one thread is "1", not "yes"


def test_a_missing_package_is_named_as_missing():
    assert records.version_of("no-such-package-as-this") == "not installed"


def test_every_dependency_is_listed():
    extras = PYPROJECT["optional-dependencies"]
    wanted = [*PYPROJECT["dependencies"], *(line for name in ("train", "view", "eval", "gpu") for line in extras[name])]
    listed = {re.match(r"[\w-]+", line).group() for line in wanted}
    assert listed - {"peft"} == set(records.PACKAGES)  # that only adds adapters to models of one's own
