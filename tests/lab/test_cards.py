"""The model cards of the zoo: of their records, with front matter that the model hub reads, and snippets that run."""

import re
import shutil

import pytest
import yaml

from lab.__main__ import main
from lab.cards import card, fresh
from selattn.models.zoo import zoo_models

FOLDERS = list(zoo_models().values())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_card_is_fresh_and_runs(folder, tmp_path, monkeypatch, capsys):
    assert fresh(folder), "`python -m lab zoo --cards` writes the cards"
    _, front, body = card(folder).split("---\n", 2)
    assert yaml.safe_load(front)["license"] == "apache-2.0"
    assert {"## Data", "## Training", "## Loss", "## Limits", "## Licence"} <= set(body.splitlines())
    for link in re.findall(r"\]\(([^)#]+)", body):
        assert (folder / link).is_file()
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "card", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_a_stale_card_is_written_again(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "memory"
    shutil.copytree(zoo_models()["memory"], folder)
    record = folder / "training_record.json"
    record.write_text(record.read_text().replace("3.83446265", "3.99996265"))
    assert not fresh(folder)
    monkeypatch.setenv("SELATTN_ZOO", str(tmp_path))
    assert main(["zoo", "--cards"]) == 0
    assert capsys.readouterr().out == f"{folder / 'README.md'}\n"
    assert fresh(folder)
    assert "| validation | 4.0000 |" in (folder / "README.md").read_text()
    assert main(["zoo", "--cards"]) == 0
    assert capsys.readouterr().out == ""
