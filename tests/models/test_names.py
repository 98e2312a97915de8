"""`from_pretrained` takes the names of the zoo, in our classes and in transformers' `Auto` classes."""

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM, SelectiveModel
from selattn.models.auto import register
from tests.models.tiny import tiny, token_ids

CONFIGS = (SelectiveConfig, AutoConfig)
LANGUAGE_MODELS = (SelectiveForCausalLM, AutoModelForCausalLM)
OTHERS = (
    *(SelectiveModel, AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification),
    *(AutoModelForQuestionAnswering, AutoTokenizer),
)


def name(cls):
    return cls.__name__


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_ZOO", str(tmp_path))
    saved = tiny(torch.float32)
    saved.save_pretrained(tmp_path / "mine")
    return saved


@pytest.mark.parametrize("cls", CONFIGS, ids=name)
def test_a_config(cls, model):
    assert cls.from_pretrained("zoo:mine").initializer_range == model.config.initializer_range
    assert cls.from_pretrained("zoo:mine", norm_eps=0.5).norm_eps == 0.5


@pytest.mark.parametrize("cls", LANGUAGE_MODELS, ids=name)
def test_a_model(cls, model, tmp_path):
    ids = token_ids(2, 9)
    for again in (
        cls.from_pretrained("zoo:mine"),
        cls.from_pretrained(pretrained_model_name_or_path="zoo:mine", dtype=torch.float32),
        cls.from_pretrained(tmp_path / "mine"),
        cls.from_pretrained(None, config=model.config, state_dict=model.state_dict())
        if cls is SelectiveForCausalLM
        else cls.from_pretrained("zoo:mine", config=SelectiveConfig.from_pretrained("zoo:mine")),
    ):
        assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("cls", [*CONFIGS, *LANGUAGE_MODELS, *OTHERS], ids=name)
def test_a_name_that_the_zoo_does_not_have(cls, model):
    with pytest.raises(SelattnError, match=r"unknown model zoo:mime in .*did you mean zoo:mine\?"):
        cls.from_pretrained("zoo:mime")


def test_to_register_twice_changes_nothing():
    before = AutoConfig.from_pretrained.__func__
    register()
    assert AutoConfig.from_pretrained.__func__ is before


def test_the_tokenizer_comes_with_the_model(monkeypatch):
    """Of the zoo that comes with the package."""
    monkeypatch.delenv("SELATTN_ZOO", raising=False)
    tokenizer = AutoTokenizer.from_pretrained("zoo:memory")
    model = AutoModelForCausalLM.from_pretrained("zoo:memory")
    assert len(tokenizer) == model.config.vocab_size
    ids = tokenizer("It was the", return_tensors="pt").input_ids
    text = tokenizer.decode(model.generate(ids, max_new_tokens=5, do_sample=False)[0], skip_special_tokens=True)
    assert text.startswith("It was the")
