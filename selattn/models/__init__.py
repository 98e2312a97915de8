"""The paper's decoder, and stock decoders made selective. Importing it makes the `Auto` classes know them."""

from selattn.models.auto import register
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveModel
from selattn.models.engine import Engine
from selattn.models.gpt2 import from_gpt2
from selattn.models.heads import (
    SelectiveForQuestionAnswering,
    SelectiveForSequenceClassification,
    SelectiveForTokenClassification,
)
from selattn.models.llama2c import from_llama2c
from selattn.models.loading import Loaded, load
from selattn.models.outputs import SelectiveModelOutput, SelectiveOutput
from selattn.models.seam import LanguageModel
from selattn.models.stock import NewForm, evicting, make_selective, make_standard

__all__ = [
    "Engine",
    "LanguageModel",
    "Loaded",
    "NewForm",
    "SelectiveConfig",
    "SelectiveForCausalLM",
    "SelectiveForQuestionAnswering",
    "SelectiveForSequenceClassification",
    "SelectiveForTokenClassification",
    "SelectiveModel",
    "SelectiveModelOutput",
    "SelectiveOutput",
    "evicting",
    "from_gpt2",
    "from_llama2c",
    "load",
    "make_selective",
    "make_standard",
]

register()
