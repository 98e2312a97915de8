"""Imported when peft has been: tells it which layers of our models adapters go to when nobody names any.

peft looks that up by the type of a model, in tables of `peft.utils.constants`. Our layers have the names that Llama's
have, except for the norms.
"""

from __future__ import annotations

import sys
from types import ModuleType

TABLES = ("TRANSFORMERS_MODELS_TO_", "_MODULES_MAPPING")  # how their names begin and end
TYPE, SIMILAR = "selattn", "llama"
NAMES = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}


def fill(constants: ModuleType) -> None:
    """Our entry in each table that has one of Llama's."""
    begin, end = TABLES
    for name, table in vars(constants).items():
        if name.startswith(begin) and name.endswith(end) and isinstance(table.get(SIMILAR), list):
            table.setdefault(TYPE, [NAMES.get(layer, layer) for layer in table[SIMILAR]])


fill(sys.modules["peft.utils.constants"])
