"""`selattn plot`: every figure from the command line, redrawn from its record, and bad input in one line."""

import pytest

from selattn.cli.main import main
from selattn.evaluation.traces import Trace

TASK = "zoo:variable-assignment-selective"
LONG = " ".join(f"word{i} and" for i in range(60))


def test_from_a_model_and_again_from_its_record(tmp_path, capsys):
    out, again, record = tmp_path / "a.png", tmp_path / "b.png", tmp_path / "trace.json"
    assert main(["plot", "kept", f"{TASK}@6", "--out", str(out), "--record", str(record)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    trace = Trace.load(record)
    assert trace.runs[0]["budgets"] == [6, 6, 6]
    assert main(["plot", "kept", str(record), "--out", str(again)]) == 0
    assert out.read_bytes() == again.read_bytes()
    for figure in ("tokens", "masking", "words", "attention"):
        assert main(["plot", figure, str(record), "--out", str(tmp_path / f"{figure}.svg")]) == 0
    assert (
        main(["plot", "tokens", str(record), "--position", "5", "--layers", "1", "--out", str(tmp_path / "t.pdf")]) == 0
    )


def test_of_a_text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Some words, 🙂 and a <script>.")
    assert main(["plot", "words", "zoo:memory", "--text", str(text), "--out", str(tmp_path / "words.png")]) == 0


def test_means_of_many_texts(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{i} {LONG}" for i in range(60)))
    how = ["--text", str(text), "--split", "train", "--rows", "2", "--tokens", "16"]
    record = tmp_path / "mean.json"
    made = ["--out", str(tmp_path / "mean.png"), "--record", str(record)]
    assert main(["plot", "masking-mean", "zoo:memory", *how, *made]) == 0
    assert main(["plot", "stability", str(record), str(record), "--out", str(tmp_path / "two.png")]) == 0


def test_of_records(tmp_path):
    for figure, *records in (
        ("tradeoff", "results/tradeoff.json"),
        ("curves", "results/lm_comparison.json"),
        ("scaling", "zoo:memory", "zoo:memory-2048"),
    ):
        assert main(["plot", figure, *records, "--out", str(tmp_path / f"{figure}.png")]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["maskin", TASK, "--out", "a.png"], "did you mean 'masking'"),
        (["masking", TASK, "--out", "a.txt"], "must end with .png"),
        (["masking", TASK, TASK, "--out", "a.png"], "takes 1 models or records, not 2"),
        (["stability", TASK, "--out", "a.png"], "takes 2"),
        (["kept", TASK, "--out", "a.png"], "has no budgets"),
        (["masking", "zoo:standard", "--out", "a.png"], "no layer of this model selects"),
        (["tokens", TASK, "--position", "99", "--out", "a.png"], "no token 99"),
        (["masking", TASK, "--position", "1", "--out", "a.png"], "--position belongs to tokens"),
        (["masking", TASK, "--tokens", "1", "--out", "a.png"], "at least 2"),
        (["masking", TASK, "--text", "no/such/file", "--out", "a.png"], "cannot read no/such/file"),
        (["masking-mean", "zoo:memory", "--out", "a.png"], "needs many texts"),
        (["masking", "no/such.json", "--out", "a.png"], "cannot read no/such.json"),
        (["tradeoff", "results/lm_comparison.json", "--out", "a.png"], "eval --curve"),
        (["curves", "results/tradeoff.json", "--out", "a.png"], "no training runs"),
        (["curves", "results/lm_comparison.json", "--record", "r.json", "--out", "a.png"], "nothing to write"),
    ],
)
def test_bad_input_is_one_line(words, said, tmp_path, capsys, monkeypatch):
    if not any(word.startswith("results/") for word in words):
        monkeypatch.chdir(tmp_path)
    assert main(["plot", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
