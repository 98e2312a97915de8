"""A policy of the user's own, one class and no registration, wherever a built-in name works."""

import json
import textwrap

import pytest
import torch

from selattn import SelectiveConfig, SelectiveForCausalLM
from selattn.cache import POLICIES as NAMED
from selattn.cache import Kept, Policy, Threshold, Window, make_policy
from selattn.cli.main import main
from selattn.errors import SelattnError

OWN = '''
from selattn.cache import Kept, Policy


class Newest(Policy):
    """The newest token leaves: nothing after the first K - 1 is remembered."""

    def rank(self, kept: Kept):
        return kept.position.to(kept.score.dtype)
'''
namespace = {}
exec(textwrap.dedent(OWN), namespace)
Newest: type[Policy] = namespace["Newest"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = SelectiveConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    found = SelectiveForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.mul_(4)
    return found


IDS = 1 + torch.arange(24)[None]  # no padding, which is 0


POLICIES = {
    "an object": Newest(),
    "a class": Newest,
    "with sinks": Window(sinks=3),
    "a threshold": Threshold(0.5),
    "a name": "window+2",
}


CASES = [(6, name) for name in POLICIES] + [(None, "a threshold")]  # without budgets nobody else leaves


@pytest.mark.parametrize(("budgets", "name"), CASES)
def test_generate_and_forward_agree(model, name, budgets):
    """What `generate` wrote is what a full forward with the same policy finds likeliest, token by token."""
    options = {"cache_budgets": budgets, "cache_policy": POLICIES[name]}
    text = model.generate(IDS, max_new_tokens=12, do_sample=False, pad_token_id=0, **options)
    with torch.no_grad():
        logits = model(text, use_cache=False, **options).logits
        plain = model(text, use_cache=False).logits
    assert torch.equal(logits[0, IDS.shape[1] - 1 : -1].argmax(-1), text[0, IDS.shape[1] :])
    assert not torch.allclose(logits, plain)


def test_it_keeps_what_it_says(model):
    cache = model.model.new_cache(6, Newest())
    with torch.no_grad():
        model(IDS, past_key_values=cache, use_cache=True)
    assert sorted(cache.layers[0].position.flatten().tolist()) == [0, 1, 2, 3, 4, 23]


def test_a_threshold_needs_no_budget_and_lets_storage_be_used_again(model):
    cache = model.model.new_cache(None, Threshold(0.05))
    with torch.no_grad():
        for token in IDS[0].repeat(2):
            model(token.view(1, 1), past_key_values=cache, use_cache=True)
    held = [(layer.position >= 0).sum().item() for layer in cache.layers]
    assert min(held) < 40
    assert all(
        (layer.pool.f[..., 0, :].amin(1) <= 0.05)[layer.position[:, 0] > 0].float().mean() > 0 for layer in cache.layers
    )
    assert all(layer.storage.slots <= held + 16 for layer, held in zip(cache.layers, held, strict=True))


def test_the_cache_owns_budgets_and_policy(model):
    policy = Newest()
    cache = model.model.new_cache(6, policy)
    with torch.no_grad():
        model(IDS[:, :10], past_key_values=cache, use_cache=True)  # not told again
        model(IDS[:, 10:12], past_key_values=cache, use_cache=True, cache_budgets=6, cache_policy=policy)
        for other in ({"cache_budgets": 7}, {"cache_policy": "window"}):
            with pytest.raises(SelattnError, match="the cache has them"):
                model(IDS[:, 12:13], past_key_values=cache, use_cache=True, **other)
    text = model.generate(IDS, max_new_tokens=3, past_key_values=model.model.new_cache(6, policy), pad_token_id=0)
    assert text.shape == (1, 27)


def test_a_name_of_its_own(model, monkeypatch):
    """A plain class, as CONTRIBUTING has it: a line in POLICIES, and the name works wherever a built-in one does."""
    monkeypatch.setitem(NAMED, "newest", Newest)
    options = {"max_new_tokens": 8, "do_sample": False, "cache_budgets": 6, "pad_token_id": 0}
    text = model.generate(IDS, cache_policy="newest", **options)
    assert torch.equal(text, model.generate(IDS, cache_policy=Newest(), **options))
    assert not torch.equal(text, model.generate(IDS, cache_policy="window", **options))
    cache = model.model.new_cache(6, "newest")
    with torch.no_grad():
        for token in IDS[0, :8]:  # said again at each step, which is allowed
            model(token.view(1, 1), past_key_values=cache, use_cache=True, cache_policy="newest")
        with pytest.raises(SelattnError, match="the cache has them"):
            model(IDS[:, :1], past_key_values=cache, use_cache=True, cache_policy="window")
    monkeypatch.setitem(NAMED, "newest", lambda: Window(3))  # another meaning of the name is another policy
    assert make_policy("newest") == Window(3)


def test_on_the_command_line(model, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(OWN)
    model.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    ids = " ".join(map(str, IDS[0].tolist()))
    command = ["generate", "model", "--ids", ids, "--max-new-tokens", "8", "--budgets", "6"]
    assert main([*command, "--policy", "mine:Newest"]) == 0
    own = capsys.readouterr().out.split()
    text = model.generate(
        IDS, max_new_tokens=8, do_sample=False, cache_budgets=6, cache_policy=Newest(), pad_token_id=0
    )
    assert own == [str(token) for token in text[0].tolist()]
    record = tmp_path / "record.json"
    assert (
        main(["eval", "model@6", "model@6:window", "--policy", "mine:Newest", "--speed", "--record", str(record)]) == 0
    )
    found = json.loads(record.read_text())["models"]
    assert [each["policy"] for each in found] == ["mine:Newest", "window"]
    assert main(["eval", "model", "--policy", "mine:Newest", "--speed"]) == 2
    assert "has no budgets" in capsys.readouterr().err


def test_kept_tells_what_a_policy_asks_for():
    assert Kept._fields == ("position", "score", "f", "budget")
