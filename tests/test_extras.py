"""Without any extra the operator, models, caches and most commands work; the others name the extra in one line."""

import subprocess
import sys

import pytest

from selattn.errors import EXTRAS

HIDE = f"import sys; sys.modules.update(dict.fromkeys({list(EXTRAS)}))\n"
MODELS = """
import torch, transformers, selattn
from transformers import LlamaConfig, LlamaForCausalLM
q, k, v = torch.randn(3, 1, 2, 9, 8)
assert selattn.selective_attention(q, k, v).shape == q.shape
sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
text = torch.arange(3, 23)[None]
with selattn.evicting(model, budgets=8, policy="tova"):
    assert model.generate(text, max_new_tokens=4, do_sample=False, pad_token_id=0).shape == (1, 24)
model = selattn.make_selective(model)
assert model.generate(text, max_new_tokens=4, do_sample=False, pad_token_id=0).shape == (1, 24)
for name in set(selattn.__all__) - {"plot"}:
    getattr(selattn, name)
"""


def without_extras(code, folder, *arguments):
    command = [sys.executable, "-c", HIDE + code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def command(folder, *arguments):
    return without_extras("from selattn.cli.main import main; sys.exit(main(sys.argv[1:]))", folder, *arguments)


def test_the_library_works(tmp_path):
    done = without_extras(MODELS, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("a b c d e f g\n" * 300)
    return "text.txt"


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "info",
        "zoo",
        "train --list",
        "generate zoo:memory --prompt The --budgets 16 --max-new-tokens 2",
        "eval zoo:memory --data text.txt --rows 1 --context 32",
    ],
)
def test_commands_that_need_no_extra(tmp_path, text, line):
    done = command(tmp_path, *line.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        ("train text-small-selective --out run", "accelerate", "train"),
        ("convert zoo:memory --data text.txt --out run", "accelerate", "train"),
        ("data build text.txt --out store --vocab 300", "sentencepiece", "train"),
        ("eval zoo:memory --data wikitext --rows 1", "datasets", "train"),
        ("eval zoo:memory --tasks piqa", "lm-eval", "eval"),
        ("eval zoo:memory --data text.txt --html page.html", "matplotlib", "view"),
        ("prune zoo:memory --data text.txt --until factor=2", "matplotlib", "view"),
        ("plot masking zoo:memory --text abc --out page.png", "matplotlib", "view"),
        ("info model.gguf", "gguf", "gguf"),
    ],
)
def test_commands_that_need_one_name_it(tmp_path, text, line, package, extra):
    done = command(tmp_path, *line.split())
    said = f"selattn: error: {package} is not installed: pip install 'selattn[{extra}]'\n"
    assert (done.returncode, done.stderr) == (2, said)
