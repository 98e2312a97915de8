"""Models as people have them on the command line: every command takes them, and says in one line what is wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from selattn.cli.main import main
from selattn.data.tokenizer import from_sentencepiece, sentencepiece_from_llama2c
from tests.evaluation.folders import text_file
from tests.models.stock.families import tiny
from tests.models.stock.llama2c import PIECES, write_checkpoint, write_tokenizer
from tests.models.stock.test_formats import write_gguf


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))


def commands(model, here):
    """Every command that takes a MODEL."""
    text = f"--data {here / 'text.txt'} --validation 0.8 --rows 2"
    lines = {
        "info": "",
        "generate": "--prompt cat --max-new-tokens 3 --budgets 4 --policy tova",
        "eval": f"{model}@6:h2o {text}",
        "prune": f"{text} --policy tova --report-rows 2 --step 4 --batch 2 --until factor=1.1 --out {here / 'pruned'}",
    }
    return {name: [name, model, *line.split()] for name, line in lines.items()}


def folder(here, name="llama", tokens=0, **options):
    """A folder of transformers with a tokenizer that has `tokens` more than the model knows."""
    size = write_tokenizer(here / "tok.bin")
    model = tiny(name, vocab_size=size - tokens, **{"max_position_embeddings": 32, **options})
    model.save_pretrained(here / "model", max_shard_size="20KB")
    from_sentencepiece(sentencepiece_from_llama2c(here / "tok.bin"), "tok").save_pretrained(here / "model")
    (here / "tok.bin").unlink()
    return here / "model"


def made(kind, here):
    """A model of that kind."""
    if kind == "sharded":
        found = folder(here)
        assert len(list(found.glob("*.safetensors"))) > 2
        return found
    size = write_tokenizer(here / "tok.bin")
    if kind == "gguf":
        pytest.importorskip("gguf")
        write_gguf(here / "tiny.gguf", tiny("llama", vocab_size=size, max_position_embeddings=32), PIECES)
        return here / "tiny.gguf"
    write_checkpoint(here / "model.bin", size)
    return here


@pytest.mark.parametrize("kind", ["sharded", "gguf", "llama2c"])
def test_every_command_takes_it(kind, tmp_path, capsys):
    text_file(tmp_path / "text.txt", documents=30)
    model = str(made(kind, tmp_path))
    for name, words in commands(model, tmp_path).items():
        assert main(words) == 0, (name, capsys.readouterr().err)
    assert json.loads((tmp_path / "pruned" / "budgets.json").read_text())["budgets"]


def cut(found, to=None):
    """Take a weight away, or give it another shape."""
    for file in sorted(found.glob("*.safetensors")):
        weights = load_file(file)
        if weights.pop("model.norm.weight", None) is None:
            continue
        index = found / "model.safetensors.index.json"
        told = json.loads(index.read_text())
        if to is None:
            del told["weight_map"]["model.norm.weight"]
        else:
            weights["model.norm.weight"] = to
        save_file(weights, file, metadata={"format": "pt"})
        index.write_text(json.dumps(told))


def test_weights_that_can_run_code_are_not_read(tmp_path, capsys):
    found = folder(tmp_path)
    for file in found.glob("*.safetensors*"):
        file.unlink()
    torch.save({}, found / "pytorch_model.bin")
    assert main(["generate", str(found), "--prompt", "cat"]) == 2
    assert "pytorch_model.bin can run code when it is read, and is not" in capsys.readouterr().err


def test_a_tokenizer_that_asks_for_code_of_its_own(tmp_path, capsys, monkeypatch):
    """transformers would ask at the terminal whether to run it."""
    found = folder(tmp_path)
    settings = found / "tokenizer_config.json"
    asks = {"tokenizer_class": "TheirTokenizer", "auto_map": {"AutoTokenizer": ["theirs.TheirTokenizer", None]}}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **asks}))
    (found / "theirs.py").write_text("raise SystemExit('it was run')")
    monkeypatch.setattr("builtins.input", lambda *args: "y")
    for command in (["info", str(found)], ["generate", str(found), "--prompt", "cat"]):
        capsys.readouterr()
        assert main(command) == 2
        told = capsys.readouterr().err.strip().splitlines()
        assert len(told) == 1, told
        assert "cannot read the tokenizer in" in told[0]


def foreign(here):
    """A model that is no decoder."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9}
    BertModel(BertConfig(**sizes)).save_pretrained(here / "model")
    return here / "model"


FAULTS = {
    "foreign": "is of a model of type 'bert', which is not understood",
    "crossed": "with cross-attention is not understood",
    "missing": "lacks 1 of its model's weights, such as model.norm.weight",
    "shape": "model.norm.weight is [5], and by the config it is [32]",
    "tokenizer": "has 273 tokens, and its model knows 263",
    "code": "asks for code of its own (auto_map), which is not run",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_clear_line(fault, tmp_path, capsys):
    text_file(tmp_path / "text.txt", documents=30)
    if fault == "foreign":
        found = foreign(tmp_path)
    elif fault == "crossed":
        found = folder(tmp_path, "gpt2", n_positions=32, add_cross_attention=True)
    else:
        found = folder(tmp_path, tokens=10 * (fault == "tokenizer"))
    config = found / "config.json"
    if fault in ("missing", "shape"):
        cut(found, None if fault == "missing" else torch.ones(5))
    if fault == "code":
        config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoModel": "x.py"},', 1))
    out = tmp_path / "converted"
    words = ["convert", str(found), "--data", str(tmp_path / "text.txt"), "--validation", "0.5", "--out", str(out)]
    capsys.readouterr()  # what saving said
    for name, command in {**commands(str(found), tmp_path), "convert": words}.items():
        assert main(command) == 2, name
        told = capsys.readouterr().err.strip().splitlines()
        assert len(told) == 1, told
        assert FAULTS[fault] in told[0]
    assert not (tmp_path / "pruned").exists()
    assert not out.exists()
