"""Folders of llama2.c, with one model `.bin` and its tokenizer `tok*.bin`, as a stock Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from selattn.data.tokenizer import Tokenizer, from_sentencepiece, sentencepiece_from_llama2c
from selattn.errors import SelattnError
from selattn.models.llama2c import from_llama2c, llama2c_files
from selattn.models.stock.classes import config_class
from selattn.models.stock.families import FAMILIES
from selattn.models.stock.format import STOCK_POLICY, StockFormat
from selattn.models.stock.make import make_selective
from selattn.models.stock.settings import StockSettings

# What Llama's parts are called in transformers, of those that have another name there.
_NAMES = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "attention": "self_attn"}
_SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "max_position_embeddings", "tie_word_embeddings", "bos_token_id", "eos_token_id"),
)


class Llama2cFormat(StockFormat):
    """Read as transformers' Llama: the same function."""

    def owns(self, folder: Path) -> bool:
        """By its two files."""
        return folder.is_dir() and not (folder / "config.json").exists() and any(folder.glob("tok*.bin"))

    def config(self, folder: Path) -> Any:
        """From the header of the `.bin` file."""
        found: Any = _stock(folder).config
        found.__class__ = config_class(FAMILIES["llama"])
        found.selattn = StockSettings(cache_policy=STOCK_POLICY).to_dict()
        return found

    def check(self, folder: Path, config: Any) -> None:
        """Whether the file is whole."""
        _stock(folder)

    def model(self, folder: Path, dtype: torch.dtype | None) -> Any:
        """The model with all its weights and the evicting cache."""
        model: Any = _stock(folder)
        return make_selective(model if dtype is None else model.to(dtype), selection=None, cache_policy=STOCK_POLICY)

    def has_tokenizer(self, folder: Path) -> bool:
        """Every such folder has one."""
        return True

    def tokenizer(self, folder: Path, vocab_size: int) -> Tokenizer:
        """Converted from llama2.c's own format; it must have as many tokens as its model."""
        checkpoint, file = llama2c_files(folder)
        found = Tokenizer(from_sentencepiece(sentencepiece_from_llama2c(file), str(file)), file)
        if found.vocab_size != vocab_size:
            raise SelattnError(
                f"{checkpoint.name} has {vocab_size} tokens and {file.name} {found.vocab_size}: "
                "they do not belong together"
            )
        return found

    def files(self, folder: Path) -> list[Path]:
        """The checkpoint: it has weights and sizes."""
        return [llama2c_files(folder)[0]]


def _stock(folder: Path) -> LlamaForCausalLM:
    """transformers' Llama with the checkpoint's weights."""
    ours = from_llama2c(llama2c_files(folder)[0])
    sizes = {name: getattr(ours.config, name) for name in _SAME}
    model = LlamaForCausalLM(LlamaConfig(**sizes, rms_norm_eps=ours.config.norm_eps, pad_token_id=2))
    weights = {_renamed(name): weight for name, weight in ours.state_dict().items()}
    model.load_state_dict(weights)
    return model.eval()


def _renamed(name: str) -> str:
    return ".".join(_NAMES.get(part, part) for part in name.split("."))
