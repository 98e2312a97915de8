"""Make `AutoConfig` and `AutoModelForCausalLM` know the decoder."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveForCausalLM, SelectiveModel


def register() -> None:
    """Register the classes; doing it twice is harmless."""
    AutoConfig.register(SelectiveConfig.model_type, SelectiveConfig, exist_ok=True)
    AutoModel.register(SelectiveConfig, SelectiveModel, exist_ok=True)
    AutoModelForCausalLM.register(SelectiveConfig, SelectiveForCausalLM, exist_ok=True)
