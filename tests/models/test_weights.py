"""A saved model is read whole, or refused in one line: by `read_whole`, and by the commands that read models."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.formats import FILE, INDEX, FolderFormat, read_whole
from tests.models.tiny import VARIANTS, tiny


@pytest.fixture
def saved(tmp_path):
    config = SelectiveConfig(vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
    SelectiveForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("size", ["50GB", "8KB"])
def test_it_is_what_was_saved(tmp_path, changes, size):
    """In one file, or in several."""
    model = tiny(torch.float32, **changes)
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / INDEX).exists() == (size == "8KB")
    FolderFormat().check(tmp_path)
    again = read_whole(tmp_path).state_dict()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], weight) for name, weight in model.state_dict().items())


def rewrite(change):
    """Weights that are changed by a function of them."""

    def spoil(folder):
        weights = load_file(folder / FILE)
        change(weights, next(name for name in weights if "mlp" in name))
        save_file(weights, folder / FILE, metadata={"format": "pt"})

    return spoil


def cut_layer(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))


def shard(folder, spoil):
    model = SelectiveForCausalLM.from_pretrained(folder)
    (folder / FILE).unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    spoil(folder, next(folder.glob("model-00002-*")))


SPOILT = {
    "missing": (rewrite(lambda w, name: w.pop(name)), r"lacks 1 of its model's weights, such as \S*mlp"),
    "surplus": (rewrite(lambda w, name: w.update(more=w[name] + 1)), "has 1 weights that its config has no place for"),
    "a layer too many": (cut_layer, r"has 11 weights that its config has no place for, such as model\.layers\.1"),
    "misshapen": (
        rewrite(lambda w, name: w.update({name: w[name][:-1].clone()})),
        r"mlp\.down_proj\.weight is \[7, 21\], and by the config it is \[8, 21\]",
    ),
    "whole numbers": (rewrite(lambda w, name: w.update({name: w[name].long()})), "holds I64, and no fractions"),
    "truncated": (lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-100]), "cannot read"),
    "header only": (lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:8]), "cannot read"),
    "empty": (lambda folder: (folder / FILE).write_bytes(b""), "cannot read"),
    "no weights inside": (lambda folder: save_file({}, folder / FILE), r"lacks \d\d of its"),
    "rubbish": (lambda folder: (folder / FILE).write_bytes(b"no weights"), "cannot read"),
    "a pickle": (lambda folder: torch.save({"a": torch.ones(3)}, folder / FILE), "cannot read"),
    "a shard gone": (lambda folder: shard(folder, lambda _, file: file.unlink()), "cannot read"),
    "a shard cut": (lambda folder: shard(folder, lambda _, file: file.write_bytes(b"x")), "cannot read"),
    "an index of nothing": (
        lambda folder: shard(folder, lambda folder, _: (folder / INDEX).write_text("{}")),
        "does not say in which file",
    ),
}


@pytest.mark.parametrize(("spoil", "line"), SPOILT.values(), ids=SPOILT)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_whole_is_refused(saved, spoil, line, capsys):
    """Else a missing tensor is drawn at random, a surplus layer is left out, and a table shows what is not there."""
    spoil(saved)
    with pytest.raises(SelattnError, match=line) as error:
        read_whole(saved)
    said = str(error.value)
    assert "\n" not in said
    assert str(saved) in said
    for command in (["info", str(saved)], ["generate", str(saved), "--ids", "1 2"]):
        capsys.readouterr()
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert not out
        assert " ".join(err.split()).endswith(" ".join(said.split()))


def test_without_weights(saved, capsys):
    """A config alone is something to look at, and nothing to run."""
    (saved / FILE).unlink()
    with pytest.raises(SelattnError, match=r"cannot read the weights in \S*: there is no model.safetensors"):
        read_whole(saved)
    assert main(["info", str(saved)]) == 0
    assert "no weights here" in capsys.readouterr().out
