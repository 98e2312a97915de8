"""`selattn plot`: every figure from the command line, redrawn from its record, and bad input in one line."""

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
