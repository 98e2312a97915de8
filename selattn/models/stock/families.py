"""The supported families of transformers' decoders, and the classes of their selective models, made on the fly.

To add a family: a line in `FAMILIES`, and a tiny model in tests/models/stock/families.py. It must give the new keys and
values to `past_key_values.update`, pass its keyword arguments on to the attention function of `AttentionInterface`, and
have no other attention (cross-attention, sinks, biases).
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.models.auto import modeling_auto

from selattn.errors import SelattnError
from selattn.models.protocols import Description

SELECTIVE = "selective_"  # the prefix of the type of a selective model
_DOC = "Made by `selattn.make_selective`."


@dataclass(frozen=True)
class Family:
    """One model type of transformers.

    Attributes:
        model_type: as config.json names it.
        module: below `transformers.models`.
        config: the name of its config class.
        model: the name of its causal language model.
        attention: the name of the class of its self-attention.
        windowed: whether `sliding_window` holds in every layer; else `layer_types` says where it does.
        seq2seq: an encoder and a decoder, of which only the decoder's self-attention selects.
    """

    model_type: str
    module: str
    config: str
    model: str
    attention: str
    windowed: bool = False
    seq2seq: bool = False

    def load(self, name: str, file: str = "modeling") -> Any:
        """A class of the family."""
        return getattr(importlib.import_module(f"transformers.models.{self.module}.{file}_{self.module}"), name)

    @property
    def selective_type(self) -> str:
        """The model type of a selective model, which a transformers without selattn does not know."""
        return SELECTIVE + self.model_type


def _family(model_type: str, prefix: str, *, windowed: bool = False, model: str = "ForCausalLM") -> Family:
    module = model_type.removesuffix("_text")
    return Family(model_type, module, f"{prefix}Config", prefix + model, f"{prefix}Attention", windowed)


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        _family("llama", "Llama"),
        _family("qwen2", "Qwen2"),
        _family("qwen3", "Qwen3"),
        _family("mistral", "Mistral", windowed=True),
        _family("gpt2", "GPT2", model="LMHeadModel"),
        _family("gpt_neox", "GPTNeoX"),
        _family("gemma2", "Gemma2"),
        Family("gemma3_text", "gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", "Gemma3Attention"),
        _family("phi3", "Phi3", windowed=True),
        _family("olmo2", "Olmo2"),
        _family("mixtral", "Mixtral", windowed=True),
        _family("qwen3_moe", "Qwen3Moe", windowed=True),
        Family("t5", "t5", "T5Config", "T5ForConditionalGeneration", "T5Attention", seq2seq=True),
    )
}


def family_of(model: Any) -> Family:
    """The family of a model; one line if it is not understood."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    family = FAMILIES.get(str(kind))
    if family is None or type(model).__name__ != family.model:
        known = ", ".join(each.model for each in FAMILIES.values())
        raise SelattnError(f"the attention of {type(model).__name__} is not understood: use one of {known}")
    check_config(model.config, type(model).__name__)
    if not family.seq2seq and any(_looks_ahead(module, family) for module in model.modules()):
        raise _not_causal(family.model, "is_causal=False in its layers")
    return family


def check_config(config: Any, name: str) -> None:
    """Raise for attention that a model of an understood family may have beside the one that is understood."""
    if getattr(config, "add_cross_attention", False):
        raise SelattnError(f"{name} with cross-attention is not understood: leave add_cross_attention out")
    if getattr(config, "use_bidirectional_attention", None):
        raise _not_causal(name, "use_bidirectional_attention")
    if not getattr(config, "is_causal", True):
        raise _not_causal(name, "is_causal=False")


def _looks_ahead(module: Any, family: Family) -> bool:
    return type(module).__name__ == family.attention and not getattr(module, "is_causal", True)


def _not_causal(name: str, setting: str) -> SelattnError:
    """Selection and eviction are of earlier tokens: the model would be made causal without a word."""
    return SelattnError(f"{name} attends to later tokens ({setting}), and selective attention is causal: leave it out")


def layer_windows(family: Family, config: Any) -> list[int | None]:
    """Of each layer, how many of the last tokens it sees; None for all."""
    layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and not family.windowed:
        return [window if kind == "sliding_attention" else None for kind in kinds[:layers]]
    return [window if family.windowed else None] * layers


# -- classes ----------------------------------------------------------------------------------------------------------


class StockConfig:
    """Stands before a config class of transformers, and makes a selective model of whatever has such a config."""

    model_type = ""

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; the `Auto` classes learn of the model only now, so that no model is imported before."""
        model_class(FAMILIES[cls.model_type.removeprefix(SELECTIVE)])
        return super().from_dict(*args, **kwargs)  # type: ignore[misc]

    @property
    def description(self) -> Description:
        """The model without its weights, from the config alone."""
        from selattn.models.stock.model import describe

        return describe(self)


def family_of_config(config: Any) -> Family:
    """The family of a selective config."""
    return FAMILIES[config.model_type.removeprefix(SELECTIVE)]


@functools.cache
def config_class(family: Family) -> type:
    """The config of selective models of a family, of a type that a transformers without selattn refuses."""
    stock = family.load(family.config, "configuration")
    inside = {"model_type": family.selective_type, "__module__": __name__, "__doc__": _DOC}
    return type(f"Selective{stock.__name__}", (StockConfig, stock), inside)


@functools.cache
def model_class(family: Family) -> type[PreTrainedModel]:
    """The selective models of a family; `AutoModelForCausalLM`, the trainer and the pipelines know them from now on."""
    from selattn.models.stock.model import StockSelective
    from selattn.models.stock.t5 import T5Selective

    stock = family.load(family.model)
    ours = T5Selective if family.seq2seq else StockSelective
    inside = {"config_class": config_class(family), "__module__": __name__, "__doc__": _DOC}
    made: Any = type(f"Selective{stock.__name__}", (ours, stock), inside)
    auto: Any = AutoModelForSeq2SeqLM if family.seq2seq else AutoModelForCausalLM
    auto.register(config_class(family), made, exist_ok=True)
    kind = "SEQ_TO_SEQ_CAUSAL_LM" if family.seq2seq else "CAUSAL_LM"
    names: Any = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    names[family.selective_type] = made.__name__
    return made


def register_configs() -> None:
    """Make `AutoConfig` know the types of selective configs; models follow when one of them is read."""
    for family in FAMILIES.values():
        AutoConfig.register(family.selective_type, config_class(family), exist_ok=True)


def __getattr__(name: str) -> Any:
    """The generated classes by name, for pickle."""
    for family in FAMILIES.values():
        if name == f"Selective{family.config}":
            return config_class(family)
        if name == f"Selective{family.model}":
            return model_class(family)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
