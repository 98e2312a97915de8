"""From a run to its model: the config that follows from the settings and the data, and the first weights."""

from __future__ import annotations

from typing import Any

from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.loading import load
from selattn.models.weights import load_whole
from selattn.training.config import ARCHITECTURE, RunConfig, TextData


def model_config(run: RunConfig, tokenizer: Tokenizer | None = None) -> SelectiveConfig:
    """The model's config. Vocabulary and context size are those of the data unless the run says otherwise."""
    data = run.data
    vocabulary = data.vocabulary if isinstance(data, TextData) else data.vocab_size
    if tokenizer is not None:
        vocabulary = tokenizer.vocab_size
    settings: dict[str, Any] = dict(run.model)
    if run.start.model is None:
        ids = {} if tokenizer is None else special_tokens(tokenizer)
        settings = {"vocab_size": vocabulary, "max_position_embeddings": data.context, **ids, **settings}
        config = SelectiveConfig(**settings)
    else:
        given = load(run.start.model).config.to_dict()
        for name in ARCHITECTURE:
            if name in settings and settings[name] != given[name]:
                raise SelattnError(
                    f"model.{name} is {given[name]} in {run.start.model} and {settings[name]} in the run: "
                    "fine-tuning cannot change it; leave it out"
                )
        config = SelectiveConfig(**{**given, **settings})
        if run.start.ramp:
            _check_ramp(run.start.model, SelectiveConfig(**given), config)
    if config.vocab_size < vocabulary:
        raise SelattnError(
            f"the data has {vocabulary} tokens and the model's vocabulary {config.vocab_size}: "
            "set model.vocab_size or data.vocabulary, or use the tokenizer that the model was trained with"
        )
    most = config.max_position_embeddings
    if most < data.context:
        if run.start.model is None:
            advice = "set model.max_position_embeddings or data.context"
        elif isinstance(data, TextData):
            advice = f"fine-tuning cannot change that; set data.context={most}"
        else:
            advice = "fine-tuning cannot change that; take a smaller task"
        raise SelattnError(f"rows have {data.context} tokens and the model has {most} positions: {advice}")
    return config


def _check_ramp(name: str, before: SelectiveConfig, after: SelectiveConfig) -> None:
    """A ramp is for layers that begin to select: those that did before would first lose what they have learned."""
    pairs = zip(before.kinds, after.kinds, strict=True)
    new = [layer for layer, (old, kind) in enumerate(pairs) if kind.selective and not old.selective]
    if after.selects and not new and before.selection_strength > 0:
        raise SelattnError(
            f"start.ramp has nothing to ramp from: the layers of {name} that are to select do so already; "
            "leave start.ramp out"
        )


def make_model(run: RunConfig, config: Any) -> Any:
    """The model with new weights, or with those of the model that is fine-tuned."""
    if run.start.model is None:
        return SelectiveForCausalLM(config)
    return load_whole(load(run.start.model).folder, config=config, dtype="float32")


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """As a model's config names them."""
    return {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
