"""The scripts in examples/ run as they are."""

import subprocess
import sys
from pathlib import Path

from tests.models.stock.llama2c import write_checkpoint, write_tokenizer

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_prune_stock(tmp_path):
    write_checkpoint(tmp_path / "model.bin", write_tokenizer(tmp_path / "tok.bin"))
    (tmp_path / "text.txt").write_text("the cat at the tea " * 9)
    command = [sys.executable, str(EXAMPLES / "prune_stock.py"), str(tmp_path), str(tmp_path / "text.txt")]
    done = subprocess.run([*command, "--context", "24"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "24 tokens, and 6 of them kept in each layer"
    losses = {line[:16].strip(): float(line.split("loss")[1].split()[0]) for line in lines[1:]}
    assert set(losses) == {"everything kept", "h2o", "tova", "window+4"}
    assert len(set(losses.values())) > 1
