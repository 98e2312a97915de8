"""Records say which code wrote them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from selattn.training.record import training_key
from selattn.utils import records

PACKAGE = Path(records.__file__).parents[1]


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path):
    """A repository with a package that can write records."""
    package = tmp_path / "selattn"
    (package / "utils").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "utils" / "__init__.py").touch()
    for name in ("utils/records.py", "utils/files.py", "utils/typed.py", "errors.py"):
        shutil.copy(PACKAGE / name, package / name)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def written(root):
    """What a record that is written by the package in that folder says of its code."""
    code = "import sys; sys.path.insert(0, '.'); from selattn.utils.records import revision; import json; "
    done = subprocess.run(
        [sys.executable, "-c", code + "print(json.dumps(revision()))"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_record_has_the_commit(checkout):
    assert written(checkout) == {"commit": git(checkout, "rev-parse", "HEAD").strip(), "dirty": False}


@pytest.mark.parametrize(
    ("changed", "dirty"),
    [("selattn/errors.py", True), ("selattn/new.py", True), ("results/old.json", False), ("README.md", False)],
)
def test_changed_code_is_dirty_and_changed_results_are_not(checkout, changed, dirty):
    path = checkout / changed
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write("\n# changed\n")
    assert written(checkout)["dirty"] is dirty


def test_an_installed_package_has_no_commit_even_inside_a_checkout(checkout, tmp_path):
    environment = checkout / "env"
    shutil.copytree(checkout / "selattn", environment / "selattn")
    assert written(environment) == {"commit": None, "dirty": None}


def test_write_record_puts_it_in(tmp_path):
    record = records.read_record(records.write_record(tmp_path / "r.json", {"x": 1}, seed=0))
    assert {name: record[name] for name in ("commit", "dirty")} == records.revision()


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("{here}/runs/a", "runs/a"),
        ("{here}", "."),
        ("/far/away/store", "store"),
        ("start.model=/far/away/run-1/model", "start.model=run-1/model"),
        ("--out=/far/away/store/", "--out=store"),
        ("data.source=/far/text.txt", "data.source=text.txt"),
        ("ours=/far/net@/far/search:h2o", "ours=net@search:h2o"),
        ("/", "/"),
        ("runs/a", "runs/a"),
        ("../a", "../a"),
        ("hub:owner/name", "hub:owner/name"),
        ("https://example.org/a", "https://example.org/a"),
        ("zoo:memory@64:h2o", "zoo:memory@64:h2o"),
    ],
)
def test_portable(word, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert records.portable(word.format(here=tmp_path)) == shown


def test_a_record_holds_no_absolute_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["selattn", "eval", str(tmp_path / "m"), "--data", "/far/t.txt"])
    run = {"data": {"source": "/far/t.txt"}, "start": {"model": "/far/m"}}
    body = {
        "settings": {"source": "/far/t.txt", "texts": {"lm1b": "/far/l.txt"}, "set": ["data.source=/far/t.txt"]},
        "models": [{"model": "/far/m@8", "run": run}],
        "until": ["baseline=/far/b"],
        "skip": "/far/search",
        "tokens": ["/usr", "/bin/sh"],
    }
    record = records.read_record(records.write_record(tmp_path / "r.json", body, 0))
    assert record["command"].endswith("eval m --data t.txt")
    assert record["models"][0] == {"model": "m@8", "run": {"data": {"source": "t.txt"}, "start": {"model": "m"}}}
    assert record["settings"] == {"source": "t.txt", "texts": {"lm1b": "l.txt"}, "set": ["data.source=t.txt"]}
    assert (record["until"], record["skip"]) == (["baseline=b"], "search")
    assert record["tokens"] == body["tokens"]  # a text is no path
    assert training_key(record["models"][0]["run"]) == training_key(run)
