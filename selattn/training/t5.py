"""T5 as a run trains it: from its settings to its config, and to a model whose decoder selects, or does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from selattn.data.sentinels import COUNT
from selattn.errors import SelattnError
from selattn.eviction import Budgets
from selattn.models import SelectiveConfig
from selattn.models.stock.classes import config_class, model_class
from selattn.models.stock.families import FAMILIES
from selattn.models.stock.settings import StockSettings
from selattn.models.stock.t5 import describe_t5
from selattn.models.tokenizer import Tokenizer
from selattn.ops import Selection
from selattn.training.config import RunConfig, SpanData

_SIZES = ("d_model", "d_ff", "d_kv", "num_layers", "num_decoder_layers", "num_heads")


@dataclass(frozen=True)
class T5Settings:
    """The model of a run with span corruption. The encoder and the cross-attention never select.

    Args:
        attention: "selective" or "standard", of the decoder's self-attention.
        memory_epsilon: weight of the memory term in the loss.
        memory_tau: the clamp of M_i.
        vocab_size: tokens that the model knows; None is the tokenizer's, sentinels included.
        d_model: size of a token's state.
        d_ff: size of the hidden layer of an MLP.
        d_kv: size of a head.
        num_layers: layers of the encoder.
        num_decoder_layers: layers of the decoder.
        num_heads: of each attention.
        feed_forward_proj: "relu" as in the first T5, or "gated-gelu" as in T5 1.1.
        dropout_rate: 0 as in T5X's pre-training.
        tie_word_embeddings: whether the logits are made with the embeddings.
        cache_budgets: K_l of the decoder, in force in training, too; one number or one for each layer.
    """

    attention: Literal["selective", "standard"] = "selective"
    memory_epsilon: float = 0.0
    memory_tau: float = 1.0
    vocab_size: int | None = None
    d_model: int = 512
    d_ff: int = 2048
    d_kv: int = 64
    num_layers: int = 6
    num_decoder_layers: int = 6
    num_heads: int = 8
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    dropout_rate: float = 0.0
    tie_word_embeddings: bool = True
    cache_budgets: int | list[int] | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise SelattnError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.dropout_rate < 1:
            raise SelattnError(f"model.dropout_rate must be in [0, 1), not {self.dropout_rate}")
        if self.memory_epsilon and self.attention == "standard":
            raise SelattnError("model.memory_epsilon weighs what is forgotten: set model.attention=selective")


def settings_class(run: RunConfig) -> type:
    """What the fields `model.NAME` of a run are."""
    return T5Settings if isinstance(run.data, SpanData) else SelectiveConfig


def t5_settings(run: RunConfig) -> T5Settings:
    """The run's model; one line for a setting that T5 does not have, or that does not go with it."""
    try:
        found = T5Settings(**run.model)
    except TypeError as error:
        raise SelattnError(f"the model of {run.name}: {error}") from None
    if run.start.model is not None or run.start.ramp or run.shrink.steps:
        raise SelattnError("a run with span corruption begins anew: leave start.model, start.ramp and shrink.steps out")
    return found


def t5_config(run: RunConfig, tokenizer: Tokenizer | None) -> Any:
    """The config of the selective T5; a standard one is the same with nothing that selects."""
    assert isinstance(run.data, SpanData)
    chosen = t5_settings(run)
    needed = run.data.vocabulary + COUNT if tokenizer is None else tokenizer.vocab_size
    vocabulary = chosen.vocab_size or needed
    if vocabulary < needed:
        raise SelattnError(
            f"the data has {needed} tokens, sentinels included, and the model's vocabulary {vocabulary}: "
            "set model.vocab_size or data.vocabulary"
        )
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    if tokenizer is not None:
        special = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id}
        special["decoder_start_token_id"] = tokenizer.pad_id
    same = ("feed_forward_proj", "dropout_rate", "tie_word_embeddings")
    sizes = {name: getattr(chosen, name) for name in (*_SIZES, *same)}
    config: Any = config_class(FAMILIES["t5"])(vocab_size=vocabulary, **sizes, **special)
    config.selattn = StockSettings(
        selection=Selection() if chosen.attention == "selective" else None,
        memory_epsilon=chosen.memory_epsilon,
        memory_tau=chosen.memory_tau,
        cache_budgets=chosen.cache_budgets,
        cache_policy="selective" if chosen.attention == "selective" else "window+4",
    ).to_dict()
    return config


@dataclass(frozen=True)
class T5Ends:
    """Where the course of a T5 ends, see `selattn.training.course.Ends`; its layers are those of the decoder."""

    num_hidden_layers: int
    selects: bool
    selection_strength: float
    budgets: Budgets | None


def t5_ends(config: Any) -> T5Ends:
    """What its config says of that."""
    found = describe_t5(config)
    return T5Ends(found.layers, found.selects, StockSettings.from_dict(config.selattn).strength, found.budgets)


def make_t5(config: Any) -> Any:
    """The model with new weights."""
    return model_class(FAMILIES["t5"])(config)
