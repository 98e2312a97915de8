"""Files that version 0.1.0 wrote before the packages were renamed and records had a commit: they are still read.

tests/old has them as they were: a model's config and its weights' names, its training record, a budgets file, a search
and a trade-off (cut to a few steps and curves).
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from selattn import Budgets, SelectiveConfig, SelectiveForCausalLM
from selattn.cli.main import main
from selattn.models.loading import load

OLD = Path(__file__).parent / "old"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder with the old config and record, and weights under the old names."""
    path = tmp_path_factory.mktemp("old")
    for name in ("config.json", "training_record.json"):
        shutil.copy(OLD / name, path)
    from safetensors.torch import save_file

    shapes = json.loads((OLD / "weights.json").read_text())
    chance = torch.Generator().manual_seed(0)
    weights = {name: 0.05 * torch.randn(shape, generator=chance).bfloat16() for name, shape in shapes.items()}
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def test_a_model_folder(folder):
    """Every setting as it was written, and every weight in its place: none is missing, and none is left over."""
    want = json.loads((OLD / "config.json").read_text())
    config = SelectiveConfig.from_pretrained(folder).to_dict()
    assert {name: config[name] for name in want if name != "transformers_version"} == {
        name: value for name, value in want.items() if name != "transformers_version"
    }
    model = load(str(folder)).model
    assert isinstance(model, SelectiveForCausalLM)
    from safetensors.torch import load_file

    written, state = load_file(folder / "model.safetensors"), model.state_dict()
    assert written.keys() - state.keys() == set()
    assert {name for name in state.keys() - written.keys() if name != "lm_head.weight"} == set()  # which is tied
    assert all(torch.equal(state[name].bfloat16(), x) for name, x in written.items())


def test_its_training_record(folder, capsys):
    assert main(["info", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["training record"] == json.loads((OLD / "training_record.json").read_text())


def test_a_budgets_file(folder, capsys):
    assert Budgets.load(OLD / "budgets.json") == Budgets((2, 3, 3))
    words = ["generate", str(folder), "--ids", "3 5 7", "--max-new-tokens", "3", "--budgets", str(OLD / "budgets.json")]
    assert main(words) == 0
    assert len(capsys.readouterr().out.split()) == 6


@pytest.mark.parametrize(("figure", "name"), [("search", "prune.json"), ("tradeoff", "tradeoff.json")])
def test_a_figure_of_a_record(figure, name, tmp_path):
    assert main(["plot", figure, str(OLD / name), "--out", str(tmp_path / "figure.svg")]) == 0
    assert (tmp_path / "figure.svg").stat().st_size > 1000
