"""Without any extra the operator, models, caches and most commands work; the others name the extra in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from selattn.errors import EXTRAS

ROOT = Path(__file__).parents[1]
HIDE = f"""
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {list(EXTRAS)} else find(name, path, target)
PathFinder.find_spec = classmethod(find_spec)
"""
MODELS = """
import torch, transformers, selattn
from transformers import LlamaConfig, LlamaForCausalLM
q, k, v = torch.randn(3, 1, 2, 9, 8)
assert selattn.selective_attention(q, k, v).shape == q.shape
sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
text = torch.arange(3, 23)[None]
with selattn.evicting(model, budgets=8, policy="tova"):
    assert model.generate(text, min_new_tokens=4, max_new_tokens=4, do_sample=False, pad_token_id=0).shape == (1, 24)
model = selattn.make_selective(model)
assert model.generate(text, min_new_tokens=4, max_new_tokens=4, do_sample=False, pad_token_id=0).shape == (1, 24)
for name in set(selattn.__all__) - {"plot"}:
    getattr(selattn, name)
"""


COMMANDS = """
import contextlib, io, json
from selattn.cli.main import main
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue()]))
"""
WITHOUT = (
    "--help",
    "info",
    "zoo",
    "train --list",
    "generate zoo:memory --prompt The --budgets 16 --max-new-tokens 2",
    "eval zoo:memory --data embedded --rows 1 --context 32",
)
NEEDING = {
    "train text-small-selective --out run": ("accelerate", "train"),
    "convert zoo:memory --data text.txt --out run": ("accelerate", "train"),
    "data build text.txt --out store --vocab 300": ("sentencepiece", "train"),
    "eval zoo:memory --data wikitext --rows 1": ("datasets", "train"),
    "eval zoo:memory --tasks piqa": ("lm-eval", "eval"),
    "eval zoo:memory --data text.txt --html page.html": ("matplotlib", "view"),
    "prune zoo:memory --data text.txt --until factor=2": ("matplotlib", "view"),
    "plot masking zoo:memory --text abc --out page.png": ("matplotlib", "view"),
    "info model.gguf": ("gguf", "gguf"),
}


def without_extras(code, folder, given=""):
    done = subprocess.run(
        [sys.executable, "-c", HIDE + code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_works(tmp_path):
    without_extras(MODELS, tmp_path)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The exit code of each command, and what it says on standard error."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "text.txt").write_text("a b c d e f g\n" * 300)
    lines = [*WITHOUT, *NEEDING]
    answers = without_extras(COMMANDS, folder, "\n".join(lines)).splitlines()
    return dict(zip(lines, map(json.loads, answers), strict=True))


@pytest.mark.parametrize("line", WITHOUT)
def test_commands_that_need_no_extra(said, line):
    code, wrong = said[line]
    assert code == 0, wrong


@pytest.mark.parametrize("line", NEEDING)
def test_commands_that_need_one_name_it(said, line):
    package, extra = NEEDING[line]
    assert said[line] == [2, f"selattn: error: {package} is not installed: pip install 'selattn[{extra}]'\n"]
