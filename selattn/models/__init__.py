"""The decoder of the paper, as Hugging Face models."""

from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveForCausalLM, SelectiveModel
from selattn.models.outputs import SelectiveModelOutput, SelectiveOutput

__all__ = ["SelectiveConfig", "SelectiveForCausalLM", "SelectiveModel", "SelectiveModelOutput", "SelectiveOutput"]
