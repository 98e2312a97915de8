"""`selattn data`."""

import pytest

from selattn.cli.main import main
from tests.evaluation.folders import text_file


def test_a_text_is_shown(capsys, tmp_path):
    (tmp_path / "a.txt").write_text("one [bold]\n\ntwo\n\nthree")
    assert main(["data", "show", str(tmp_path / "a.txt"), "--samples", "2", "--validation", "0"]) == 0
    out = capsys.readouterr().out
    assert "10 characters" in out
    assert "one [bold]\n" in out
    assert "three" not in out


@pytest.mark.parametrize("into", ["folder", "cache"])
def test_a_corpus_is_built(into, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    text_file(tmp_path / "a.txt", documents=300)
    out = ["--out", str(tmp_path / "out")] if into == "folder" else []
    arguments = ["data", "build", str(tmp_path / "a.txt"), "--vocab", "300", "--validation", "0.1", *out]
    assert main(arguments) == 0
    shown, _ = capsys.readouterr()
    assert "300 tokens: " in shown
    assert "validation" in shown
    if out:
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["tokenizer", "train", "validation"]
        assert main(arguments) == 2
        assert "exists already" in capsys.readouterr().err
