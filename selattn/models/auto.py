"""Make transformers' `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` know the decoder."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveModel


def register() -> None:
    """Register the classes; doing it twice is harmless."""
    AutoConfig.register(SelectiveConfig.model_type, SelectiveConfig, exist_ok=True)
    AutoModel.register(SelectiveConfig, SelectiveModel, exist_ok=True)
    AutoModelForCausalLM.register(SelectiveConfig, SelectiveForCausalLM, exist_ok=True)
    # The trainer's label smoothing looks here, by name, whether it has to shift the labels. Nothing else adds to it.
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[SelectiveConfig.model_type] = SelectiveForCausalLM.__name__
