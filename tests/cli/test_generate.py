"""`selattn generate`: the text, what it cost, and one line for each thing that can be wrong."""

import re

import pytest
import torch

from selattn.cli.main import main
from selattn.models import SelectiveForCausalLM
from tests.models.tiny import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny(dtype=torch.float32).save_pretrained(path)
    return path


def test_continues_ids_and_says_what_it_cost(folder, tmp_path, capsys):
    budgets = tmp_path / "budgets.json"
    budgets.write_text("[3, 5]")
    command = ["generate", str(folder), "--ids", "1 2 3", "--max-new-tokens", "12", "--budgets", str(budgets)]
    assert main(command) == 0
    out, err = capsys.readouterr()
    model = SelectiveForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([[1, 2, 3]])
    want = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, cache_budgets=[3, 5]
    )
    assert [int(word) for word in out.split()] == want[0].tolist()
    told = r"pruned cache takes ([\d,]+) bytes; one that keeps all 14 tokens would take ([\d,]+), [\d.]+ times"
    held, full = (int(number.replace(",", "")) for number in re.search(told, err).groups())
    config = model.config
    token = 2 * config.num_key_value_heads * config.head_dim * 4  # bytes of a key and a value
    assert full == 2 * 14 * token  # the last token is never read
    assert held >= 8 * token
    assert re.search(r"12 tokens, [\d.]+ per second", err)


def test_says_why_nothing_is_saved(folder, capsys):
    """Without budgets, and where the text is shorter than they are; and the cache is then no larger than it must be."""
    command = ["generate", str(folder), "--ids", "1 2 3", "--max-new-tokens", "18"]
    told = r"all 20 tokens, in ([\d,]+) bytes$"
    for more, why in ([], "no budgets are set"), (["--budgets", "20"], "the text is within every budget"):
        assert main([*command, *more]) == 0
        err = capsys.readouterr().err
        assert f"{why}: the cache keeps" in err
        held = int(re.search(told, err.strip()).group(1).replace(",", ""))
        assert held < 1.5 * 20 * 2 * 2 * (16 * 4 + 8)  # layers, keys and values of 2 heads; F and positions


def test_budgets_in_all_their_forms(folder, tmp_path, capsys):
    """A file, the folder of a search, one for each layer, with or without brackets: the same text."""
    (tmp_path / "budgets.json").write_text('{"budgets": [3, 5]}')
    said = []
    for budgets in (tmp_path / "budgets.json", tmp_path, "3,5", "[3, 5]"):
        command = ["generate", str(folder), "--ids", "1 2 3", "--max-new-tokens", "12", "--budgets", str(budgets)]
        assert main(command) == 0
        said.append(capsys.readouterr().out)
    assert len(set(said)) == 1
    assert main(["generate", str(folder), "--ids", "1 2 3", "--max-new-tokens", "12", "--budgets", "4"]) == 0


def test_a_temperature_draws(folder, capsys):
    said = set()
    for seed in "001":
        command = [
            "generate",
            str(folder),
            "--ids",
            "1",
            "--max-new-tokens",
            "15",
            "--temperature",
            "2",
            "--top-k",
            "0",
        ]
        assert main([*command, "--seed", seed]) == 0
        said.add(capsys.readouterr().out)
    assert len(said) == 2
