"""The scripts in examples/ run as they are."""

from pathlib import Path

from tests import forked
from tests.conversion.tiny import llama_folder
from tests.evaluation.folders import text_file
from tests.models.stock.llama2c import write_checkpoint, write_tokenizer

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_prune_stock(tmp_path):
    write_checkpoint(tmp_path / "model.bin", write_tokenizer(tmp_path / "tok.bin"))
    (tmp_path / "text.txt").write_text("the cat at the tea " * 9)
    done = forked.run([EXAMPLES / "prune_stock.py", tmp_path, tmp_path / "text.txt", "--context", "24"])
    assert done.returncodes == [0], done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "24 tokens, and 6 of them kept in each layer"
    losses = {line[:16].strip(): float(line.split("loss")[1].split()[0]) for line in lines[1:]}
    assert set(losses) == {"everything kept", "h2o", "tova", "window+4"}
    assert len(set(losses.values())) > 1


def test_convert_stock(tmp_path):
    llama_folder(tmp_path / "llama")
    text_file(tmp_path / "text.txt", documents=60, words=40)
    command = [EXAMPLES / "convert_stock.py", "llama", "text.txt", "out", "--held-out", "0.5", "--context", "24"]
    command += ["--steps", "4", "--factor", "1.5", "--prompt", "the cat"]
    done = forked.run(command, tmp_path, SELATTN_CACHE=str(tmp_path / "cache"))
    assert done.returncodes == [0], done.stderr
    losses = {line.split()[0] for line in done.stdout.splitlines() if " loss " in line}
    assert losses == {"original", "untrained", "after", "pruned"}
    assert "times less memory" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("the cat")
