"""Making a model selective and standard again, saving it, and what is refused."""

import copy
import logging
import pickle

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

import selattn
from selattn import NewForm, Selection
from selattn.errors import SelattnError
from selattn.models.loading import load
from tests.models.stock.families import tiny, tokens


def test_the_same_object_comes_back():
    model = tiny("llama")
    assert selattn.make_selective(model) is model
    assert selattn.make_standard(model) is model


def test_two_models_of_one_config_do_not_share_it():
    model = tiny("llama")
    other = type(model)(model.config).eval()
    ids = tokens(1, 20)
    with torch.no_grad():
        before = other(ids).logits
        selattn.make_selective(model)
        assert torch.equal(other(ids).logits, before)


@pytest.mark.parametrize("selection", [0, 3, (0, 2), Selection(1, shift=False), "new", NewForm(masks=1), None])
def test_saved_and_loaded(selection, tmp_path):
    model, ids = (
        selattn.make_selective(tiny("llama"), selection=selection, strength=0.5, cache_policy="tova"),
        tokens(1, 20),
    )
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.settings == model.settings
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert load(tmp_path).description == model.description
    assert torch.equal(load(tmp_path).model(ids).logits, model(ids).logits)


@pytest.mark.parametrize("selection", [0, "new"])
def test_a_class_that_is_named_gives_the_standard_model_with_a_warning(selection, tmp_path, caplog):
    """docs/stock.md says so: transformers does not ask us, so that nothing can refuse it."""
    model, ids = tiny("llama"), tokens(1, 20)
    with torch.no_grad():
        stock = model(ids).logits
        selattn.make_selective(model, selection=selection).save_pretrained(tmp_path)
        logger = logging.getLogger("transformers")
        level = logger.level  # a command may have made it quiet
        logger.setLevel(logging.WARNING)
        logger.addHandler(caplog.handler)
        again = LlamaForCausalLM.from_pretrained(tmp_path)
        logger.removeHandler(caplog.handler)
        logger.setLevel(level)
        assert type(again) is LlamaForCausalLM
        assert torch.equal(again(ids).logits, stock)
    assert "`selective_llama` to instantiate a model of type `llama`" in caplog.text
    assert ("UNEXPECTED" in caplog.text) == (selection == "new")


def test_copies_and_pickles():
    model, ids = selattn.make_selective(tiny("llama"), selection="new"), tokens(1, 20)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(ids).logits, model(ids).logits)


def test_a_new_form_starts_at_the_stock_loss_and_moves():
    model, ids = tiny("llama"), tokens(2, 40)
    stock = model(ids, labels=ids).loss
    selattn.make_selective(model, selection="new", memory_epsilon=0.1)
    first = model(ids, labels=ids)
    assert_close(first.lm_loss, stock.detach(), atol=0.05, rtol=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(2):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    forms = {n: p for n, p in model.named_parameters() if "selecting_form" in n}
    assert len(forms) == 6
    assert all(p.grad.any() for p in forms.values())


def test_one_mask_for_each_key_value_head():
    model, ids = selattn.make_selective(tiny("llama"), selection="new"), tokens(1, 20)
    assert model(ids, output_f=True).f[0].shape == (1, 2, 20, 20)
    selattn.make_standard(model)
    selattn.make_selective(model, selection=NewForm(masks=1))
    assert model(ids, output_f=True).f[0].shape == (1, 1, 20, 20)


def test_what_is_not_understood_is_refused_by_name():
    with pytest.raises(SelattnError, match="BertModel is not understood"):
        selattn.make_selective(
            BertModel(BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=9))
        )
    crossed = GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=9, add_cross_attention=True)
    with pytest.raises(SelattnError, match="cross-attention"):
        selattn.make_selective(GPT2LMHeadModel(crossed))
    with pytest.raises(SelattnError, match="head 4 cannot select: the model has 4 heads"):
        selattn.make_selective(tiny("llama"), selection=4)
    with pytest.raises(SelattnError, match="3 masks"):
        selattn.make_selective(tiny("llama"), selection=(0, 1, 2))
    with pytest.raises(SelattnError, match=r"strength must be a number in \[0, 1\], not 2"):
        selattn.make_selective(tiny("llama"), strength=2)
    with pytest.raises(SelattnError, match="selective already"):
        selattn.make_selective(selattn.make_selective(tiny("llama")))
    with pytest.raises(SelattnError, match="nothing to take back"):
        selattn.make_standard(tiny("llama"))
    with pytest.raises(SelattnError, match="knows no F"):
        selattn.make_selective(tiny("llama")).set_attn_implementation("flash_attention_2")


def test_parts_of_a_selective_model_cannot_be_called_alone():
    model = selattn.make_selective(tiny("llama"))
    with pytest.raises(SelattnError, match="called as a whole"):
        model.model(tokens(1, 8))


@pytest.mark.parametrize("fault", ["missing", "surplus", "code", "type"])
def test_folders_that_cannot_be_read(fault, tmp_path):
    from safetensors.torch import load_file, save_file

    model = tiny("llama")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    config = tmp_path / "config.json"
    if fault == "missing":
        del weights["model.norm.weight"]
    if fault == "surplus":
        weights["model.more.weight"] = torch.zeros(2)
    if fault == "code":
        config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoModel": "x.py"},', 1))
    if fault == "type":
        config.write_text(config.read_text().replace('"llama"', '"bert"'))
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    wanted = {"missing": "lacks 1 of", "surplus": "has 1 weights", "code": "auto_map", "type": "'bert'"}[fault]
    with pytest.raises(SelattnError, match=wanted):
        load(tmp_path).model  # noqa: B018 (it is loaded when it is asked for)


def test_a_stock_folder_gets_the_evicting_cache(tmp_path):
    model, ids = tiny("llama"), tokens(1, 30)
    model.save_pretrained(tmp_path)
    found = load(tmp_path)
    assert not found.description.selects
    with torch.no_grad():
        assert_close(found.model(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(found.model(ids, cache_budgets=6).logits, model(ids).logits, atol=1e-3)
