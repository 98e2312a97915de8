"""`selattn info MODEL`: what a model consists of, at 80 columns, as JSON, and what is wrong with a folder."""

import json
import re

import pytest
import torch

from selattn.cli.main import main
from selattn.models import SelectiveConfig, SelectiveForCausalLM


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    config = SelectiveConfig(
        vocab_size=100,
        hidden_size=32,
        head_dim=16,
        num_attention_heads=3,
        num_hidden_layers=6,
        max_position_embeddings=64,
        attention=["local:8", "local:8", "selective"],
        selection_source="separate",
        selection_strength=0.5,
        memory_epsilon=0.1,
    )
    SelectiveForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return path


def facts(capsys, folder):
    assert main(["info", "--json", str(folder)]) == 0
    return json.loads(capsys.readouterr().out)


def rows(capsys, folder):
    """The cells of each row of the tables, by their first; where there are two such rows, the upper one."""
    assert main(["info", str(folder)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    cells = [re.split(" {2,}", line.strip()) for line in out.splitlines() if "  " in line.strip()]
    return {row[0]: row[1:] for row in reversed(cells)}


def test_json(capsys, folder):
    found = facts(capsys, folder)
    model = SelectiveForCausalLM.from_pretrained(folder)
    count = model.num_parameters()
    assert found["model"]["parameters"] == count == sum(found["parameters"].values())
    assert found["model"]["bytes"] == 2 * count
    assert found["model"]["dtype"] == "bfloat16"
    assert found["model"]["bytes on disk"] == (folder / "model.safetensors").stat().st_size
    assert list(found["attention"].values()) == ["local:8", "local:8", "selective"] * 2
    assert found["parameters"] == {
        "embeddings": 100 * 32,
        "positions": 64 * 32,
        "attention": 6 * 4 * 32 * 48,
        "selection projections": 2 * 2 * 32 * 16,
        "mlp": 6 * 3 * 32 * 85,
        "norms": 6 * (2 * 32 + 2 * 16) + 32,
        "head": 100 * 32,
    }
    assert found["settings"]["selection_strength"] == 0.5
    assert "training record" not in found


def test_tables_say_the_same(capsys, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    record = {"steps": 1500, "loss": {"final": 4.99}, "done": True, "note": "[bold]x", "versions": {"torch": "9"}}
    (folder / "training_record.json").write_text(json.dumps(record))
    found, shown = facts(capsys, folder), rows(capsys, folder)
    assert found["training record"] == record
    count = found["model"]["parameters"]
    assert shown["parameters"] == [f"{count:,}"]
    assert shown["size"] == [f"{2 * count / 1000:.1f} kB in bfloat16"]
    assert shown["layers 0 to 1"] == shown["layers 3 to 4"] == ["local:8"]
    assert shown["layer 2"] == shown["layer 5"] == ["selective"]
    assert shown["mlp"] == ["48,960", f"{100 * 48_960 / count:.1f}%"]
    assert shown["selection_source"] == ["separate"]
    assert shown["qk_norm"] == ["yes"]
    assert (shown["steps"], shown["loss"], shown["done"], shown["note"]) == (
        ["1500"],
        ["final 4.99"],
        ["yes"],
        ["[bold]x"],
    )
    assert "versions" not in shown


def test_no_weights_are_needed(capsys, tmp_path):
    """Nor memory for them: this one would take 4 TB."""
    SelectiveConfig.from_d(450).save_pretrained(tmp_path)
    assert rows(capsys, tmp_path)["on disk"] == ["no weights here"]


def test_tied_embeddings_count_once(capsys, tmp_path):
    SelectiveConfig.gpt2().save_pretrained(tmp_path)
    found = facts(capsys, tmp_path)
    assert found["model"]["parameters"] == 124_439_808  # GPT-2 small, as published
    assert "head" not in found["parameters"]


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def change(**settings):
    return lambda folder: (folder / "config.json").write_text(
        json.dumps({**json.loads((folder / "config.json").read_text()), **settings})
    )


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (write("config.json", "{"), "config.json is not valid JSON"),
        (write("config.json", "[1]"), "config.json must hold a JSON object, not a list"),
        (change(model_type="bert"), "config.json is of a model of type 'bert', which is not understood"),
        (change(attention=["selektive"]), "config.json: unknown attention kind 'selektive'"),
        (change(atention="x"), "config.json: unknown setting 'atention'"),
        (write("training_record.json", "oops"), "training_record.json is not valid JSON"),
    ],
)
def test_a_folder_that_is_no_model(spoil, line, capsys, folder):
    spoil(folder)
    capsys.readouterr()  # what transformers says while it saves
    assert main(["info", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert line in captured.err
    assert captured.err.count("\n") == 1
