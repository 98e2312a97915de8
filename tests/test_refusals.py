"""What would be silently wrong is refused in one line that says what to do: each case was accepted once."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

import selattn
from selattn.errors import SelattnError
from tests.models.stock.families import tiny as stock
from tests.models.stock.families import tokens
from tests.models.stock.test_t5 import tiny as t5
from tests.models.training import CHECKPOINTING, enable_checkpointing


def refused(call, says):
    with pytest.raises(SelattnError) as caught:
        call()
    line = str(caught.value)
    assert says in line
    assert "\n" not in line
    assert len(line) < 400


def bidirectional(name, **changes):
    model = t5() if name == "t5" else stock(name)
    for key, value in changes.items():
        setattr(model.config, key, value)
    return selattn.make_selective(model)


def llm2vec():
    """The layers alone are told, as some recipes for embeddings do it."""
    model = stock("llama")
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    return selattn.make_selective(model)


NOT_CAUSAL = {
    "gemma3": lambda: bidirectional("gemma3_text", use_bidirectional_attention=True),
    "gemma2": lambda: bidirectional("gemma2", use_bidirectional_attention=True),
    **{f"{name} by its config": lambda name=name: bidirectional(name, is_causal=False) for name in ("llama", "gpt2")},
    "t5 by its config": lambda: bidirectional("t5", is_causal=False),
    "layers": llm2vec,
    "a config that was changed later": lambda: edited(selattn.make_selective(stock("llama"))),
}


def edited(model):
    model.config.is_causal = False
    return type(model)(model.config)


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_models_that_look_ahead(name):
    refused(NOT_CAUSAL[name], "attends to later tokens")


REENTRANT = {"use_reentrant": True}


def made(kind, **settings):
    model = t5() if kind == "t5" else stock(kind)
    return selattn.make_selective(model, memory_epsilon=0.1, **settings).train()


def loss_of(model):
    ids = tokens(2, 12)
    return model(input_ids=ids, labels=ids).loss


def before(kind):
    model = t5() if kind == "t5" else stock(kind)
    enable_checkpointing(model, REENTRANT)
    return selattn.make_selective(model)


def inside(kind):
    """The part inside is a class of transformers."""
    model = made(kind)
    enable_checkpointing(model.decoder if kind == "t5" else model.model, REENTRANT)
    loss_of(model).backward()


def trained(kind, folder):
    how = {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": REENTRANT}
    args = TrainingArguments(str(folder), max_steps=1, report_to="none", use_cpu=True, disable_tqdm=True, **how)
    rows = [{"input_ids": row, "labels": row} for row in tokens(4, 12)]
    Trainer(made(kind), args, train_dataset=rows).train()


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_reentrant_checkpointing(kind, tmp_path):
    for call in (
        lambda: enable_checkpointing(made(kind), REENTRANT),
        lambda: before(kind),
        lambda: inside(kind),
        lambda: trained(kind, tmp_path),
    ):
        refused(call, "reentrant gradient checkpointing can lose gradients")


@pytest.mark.parametrize("kind", ["llama", "gemma2", "t5"])
def test_the_gradient_with_checkpointing_is_the_one_without(kind):
    """That of the memory term alone."""

    def gradients(model):
        ids = tokens(2, 12)
        model(input_ids=ids, labels=ids).loss.backward()
        return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}

    plain, again = made(kind).double(), made(kind).double()
    enable_checkpointing(again, {"use_reentrant": False})
    found, wanted = gradients(again), gradients(plain)
    without = gradients(selattn.make_selective(t5() if kind == "t5" else stock(kind)).train().double())
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, msg=name)
    assert any(not torch.allclose(without[name], each) for name, each in wanted.items() if name in without)
