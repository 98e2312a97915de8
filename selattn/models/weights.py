"""Reading a saved model whole, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from selattn.errors import SelattnError
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.summary import read_config


def load_whole(folder: Path, **options: Any) -> SelectiveForCausalLM:
    """A saved model with all its weights; `options` are those of `from_pretrained`.

    transformers draws weights that are missing at random and says so in its log only, and whoever measures such a model
    gets another result each time.
    """
    read_config(folder)  # says in one line what is wrong with the folder
    try:
        model, found = SelectiveForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SelattnError(f"cannot read the weights in {folder}: {reason}") from error
    if missing := sorted(found["missing_keys"]):
        raise SelattnError(f"{folder} lacks {len(missing)} of its model's weights, such as {missing[0]}: save it again")
    loaded: SelectiveForCausalLM = model
    return loaded
