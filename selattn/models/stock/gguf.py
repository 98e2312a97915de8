"""GGUF files, as transformers reads them: their quantised weights become ordinary ones."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError, first_line, require
from selattn.models.stock.classes import config_class
from selattn.models.stock.families import FAMILIES
from selattn.models.stock.format import STOCK_POLICY, StockFormat, fitting
from selattn.models.stock.make import make_selective
from selattn.models.stock.settings import StockSettings

SUFFIX = ".gguf"


class GgufFormat(StockFormat):
    """One file with config, weights and tokenizer."""

    def owns(self, folder: Path) -> bool:
        """By the file's name."""
        return folder.suffix == SUFFIX

    def config(self, folder: Path) -> Any:
        """The config of a model that selects nothing."""
        found: Any = _read(AutoConfig, folder)
        if found.model_type not in FAMILIES:
            raise SelattnError(f"{folder} is of a model of type {found.model_type!r}, which is not understood")
        found.__class__ = config_class(FAMILIES[found.model_type])
        found.selattn = StockSettings(cache_policy=STOCK_POLICY).to_dict()
        return found

    def check(self, folder: Path, config: Any) -> None:
        """Whether the file's header can be read, which lists all weights."""
        self.config(folder)

    def model(self, folder: Path, dtype: torch.dtype | None) -> Any:
        """The model with all its weights and the evicting cache."""
        model = _read(AutoModelForCausalLM, folder, dtype=dtype or torch.float32)
        if getattr(model, "hf_quantizer", None) is not None:  # its weights are ordinary ones by now: it can be trained
            model.hf_quantizer.remove_quantization_config(model)
        return make_selective(model, selection=None, cache_policy=STOCK_POLICY)

    def has_tokenizer(self, folder: Path) -> bool:
        """Every such file has one."""
        return True

    def tokenizer(self, folder: Path, vocab_size: int) -> Tokenizer:
        """The tokenizer that the file holds."""
        return fitting(Tokenizer(_read(AutoTokenizer, folder), folder), folder, vocab_size)

    def files(self, folder: Path) -> list[Path]:
        """The one file, which holds everything."""
        return [folder]


def _read(auto: Any, file: Path, **options: Any) -> Any:
    """What transformers makes of the file; one line if that is nothing."""
    require("gguf")
    if not file.is_file():
        raise SelattnError(f"there is no file {file}")
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a bar that transformers has no switch for
            return auto.from_pretrained(file.parent, gguf_file=file.name, **options)
    except Exception as error:  # whatever the library behind it raises
        raise SelattnError(f"cannot read {file}: {first_line(error)}") from error
