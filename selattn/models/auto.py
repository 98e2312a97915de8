"""Make transformers' `Auto` classes know the decoder and its heads, its tokenizer, and the names of the zoo."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto import modeling_auto

from selattn.data.tokenizer import SelectiveTokenizer
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveModel
from selattn.models.heads import (
    SelectiveForQuestionAnswering,
    SelectiveForSequenceClassification,
    SelectiveForTokenClassification,
)
from selattn.models.stock.classes import register_configs
from selattn.models.zoo import from_zoo

# Each class, its `Auto` class, and the table of names that the trainer (label smoothing: are labels to be shifted?) and
# the pipelines (is the model one for the task?) look into. Registering adds to none of these tables.
_CLASSES: tuple[tuple[type, str, str], ...] = (
    (SelectiveModel, "AutoModel", "MODEL_MAPPING_NAMES"),
    (SelectiveForCausalLM, "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    (
        SelectiveForSequenceClassification,
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    ),
    (
        SelectiveForTokenClassification,
        "AutoModelForTokenClassification",
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    ),
    (
        SelectiveForQuestionAnswering,
        "AutoModelForQuestionAnswering",
        "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    ),
)


def register() -> None:
    """Register the classes; doing it twice is harmless."""
    AutoConfig.register(SelectiveConfig.model_type, SelectiveConfig, exist_ok=True)
    AutoTokenizer.register(SelectiveConfig, fast_tokenizer_class=SelectiveTokenizer, exist_ok=True)
    for model, auto, names in _CLASSES:
        auto_class: Any = getattr(modeling_auto, auto)
        auto_class.register(SelectiveConfig, model, exist_ok=True)
        getattr(modeling_auto, names)[SelectiveConfig.model_type] = model.__name__
        _teach_the_zoo(auto_class)
    register_configs()
    _teach_the_zoo(AutoConfig)
    _teach_the_zoo(AutoTokenizer)


def _teach_the_zoo(auto: Any) -> None:
    """Have `from_pretrained` take `zoo:NAME`, which is no name that the hub could have, and all else as before."""
    plain: Callable[..., Any] = auto.from_pretrained.__func__
    if hasattr(plain, "knows_the_zoo"):
        return

    @functools.wraps(plain)
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(cls, from_zoo(pretrained_model_name_or_path), *args, **kwargs)

    from_pretrained.knows_the_zoo = True  # type: ignore[attr-defined]
    auto.from_pretrained = classmethod(from_pretrained)
