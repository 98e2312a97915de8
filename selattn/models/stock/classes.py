"""The classes of selective models and their configs, made on the fly and known to the `Auto` classes."""

from __future__ import annotations

import functools
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.models.auto import modeling_auto

from selattn.models.stock.families import FAMILIES, SELECTIVE, Family

_DOC = "Made by `selattn.make_selective`."


class StockConfig:
    """Stands before a config class of transformers. Whoever reads such a config gets a selective model."""

    model_type = ""

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; the `Auto` classes learn of the model now, so that no model is imported before."""
        model_class(FAMILIES[cls.model_type.removeprefix(SELECTIVE)])
        return super().from_dict(*args, **kwargs)  # type: ignore[misc]


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
    """The classes that are made on the fly, by name: what is pickled finds them here."""
    for family in FAMILIES.values():
        if name == f"Selective{family.config}":
            return config_class(family)
        if name == f"Selective{family.model}":
            return model_class(family)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
