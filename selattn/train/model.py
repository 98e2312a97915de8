"""From a run to its model: the config that follows from the settings and the data, and the first weights."""

from __future__ import annotations

from typing import Any

from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.weights import load_whole
from selattn.models.zoo import find_model
from selattn.train.config import ARCHITECTURE, RunConfig, Text


def model_config(run: RunConfig, tokenizer: Tokenizer | None = None) -> SelectiveConfig:
    """The model's config. Vocabulary and context size are those of the data unless the run says otherwise."""
    data = run.data
    vocabulary = data.vocabulary if isinstance(data, Text) else data.vocab_size
    if tokenizer is not None:
        vocabulary = tokenizer.vocab_size
    settings: dict[str, Any] = dict(run.model)
    if run.start.model is None:
        ids = {} if tokenizer is None else special_tokens(tokenizer)
        settings = {"vocab_size": vocabulary, "max_position_embeddings": data.context, **ids, **settings}
        config = SelectiveConfig(**settings)
    else:
        given = SelectiveConfig.from_pretrained(find_model(run.start.model)).to_dict()
        for name in ARCHITECTURE:
            if name in settings and settings[name] != given[name]:
                raise SelattnError(
                    f"model.{name} is {given[name]} in {run.start.model} and {settings[name]} in the run: "
                    "fine-tuning cannot change it; leave it out"
                )
        config = SelectiveConfig(**{**given, **settings})
    if config.vocab_size < vocabulary:
        raise SelattnError(
            f"the data has {vocabulary} tokens and the model's vocabulary {config.vocab_size}: "
            "set model.vocab_size or data.vocabulary, or use the tokenizer that the model was trained with"
        )
    if config.positions == "learned" and config.max_position_embeddings < data.context:
        raise SelattnError(
            f"rows have {data.context} tokens and the model has {config.max_position_embeddings} positions: "
            "set model.max_position_embeddings or data.context"
        )
    return config


def make_model(run: RunConfig, config: SelectiveConfig) -> SelectiveForCausalLM:
    """The model with new weights, or with those of the model that is fine-tuned."""
    if run.start.model is None:
        return SelectiveForCausalLM(config)
    return load_whole(find_model(run.start.model), config=config, dtype="float32")


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """As a model's config names them."""
    return {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
