"""The kinds of model that can be read: folders of ours and of transformers, GGUF files, folders of llama2.c.

A folder is read whole or refused in one line: transformers draws weights that are missing at random, leaves out those
that the config has no place for, and says so in its log only, so whoever measures such a model measures another one.
"""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from selattn.cache import Budgets
from selattn.data.tokenizer import (
    Tokenizer,
    from_sentencepiece,
    has_tokenizer,
    read_tokenizer,
    sentencepiece_from_llama2c,
)
from selattn.errors import SelattnError, first_line, require
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig
from selattn.models.stock.families import FAMILIES, SELECTIVE, check_config, config_class, family_of_config, model_class
from selattn.models.stock.make import make_selective
from selattn.models.stock.model import StockSettings
from selattn.utils.files import read_json, write_json

CONFIG = "config.json"
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
GGUF = ".gguf"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
STOCK_POLICY = "window+4"  # of a model that selects nothing, unless another is named
_ROUNDED = 128  # a vocabulary may be rounded up to a multiple of this


class FolderFormat:
    """Folders of transformers, with a model of ours or a supported decoder: `config.json`, safetensors, a tokenizer.

    A decoder that is not selective gets the evicting cache, and nothing else. Other formats override what differs.
    """

    def owns(self, folder: Path) -> bool:
        """Whether the folder holds a model of this kind; raises for a file that cannot be read."""
        kind = str(read_json(folder / CONFIG).get("model_type"))
        family = FAMILIES.get(kind.removeprefix(SELECTIVE))
        return kind == SelectiveConfig.model_type or (family is not None and not family.seq2seq)

    def config(self, folder: Path) -> Any:
        """The config in the folder, checked; that of a selective model, even if a stock one selects nothing."""
        path = folder / CONFIG
        saved = read_json(path)
        if "auto_map" in saved:
            raise SelattnError(f"{path} asks for code of its own (auto_map), which is not run: remove that")
        try:
            if saved.get("model_type") == SelectiveConfig.model_type:
                return SelectiveConfig(**{name: value for name, value in saved.items() if name != "model_type"})
            config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # whatever a config class raises for what it does not understand
            raise SelattnError(f"{path}: {first_line(error)}") from error
        if getattr(config, "selattn", None) is None:
            check_config(config, str(folder))
            config = _selecting_nothing(config)
        StockSettings.from_dict(config.selattn)
        return config

    def check(self, folder: Path) -> None:
        """Raise unless the weights are all there and belong to the config's model; only their headers are read."""
        read_whole(folder, dtype="auto", device_map="meta")

    def model(self, folder: Path, dtype: torch.dtype | None) -> Any:
        """The model with all its weights; in the dtype in which they are stored if that is None."""
        self.config(folder)
        return _evicting(read_whole(folder, dtype="auto" if dtype is None else dtype))

    def has_tokenizer(self, folder: Path) -> bool:
        """Whether there is a tokenizer in the folder."""
        return has_tokenizer(folder)

    def tokenizer(self, folder: Path, vocab_size: int) -> Tokenizer:
        """The tokenizer, which must fit a vocabulary of this size.

        A stock model may know more tokens than its tokenizer; one of ours only as many more as rounding up brings.
        """
        own = read_json(folder / CONFIG).get("model_type") == SelectiveConfig.model_type
        return _fitting(read_tokenizer(folder), folder, vocab_size, _ROUNDED if own else None)

    def files(self, folder: Path) -> list[Path]:
        """Weights and config, which decide what the model computes."""
        there = any(folder.glob("*.safetensors"))  # a config alone can be described
        return [*(weight_files(folder) if there else []), folder / CONFIG]

    def save_pruned(self, folder: Path, to: Path, budgets: Budgets, policy: str) -> None:
        """A copy in the folder `to`, whose config has these budgets and this policy."""
        model = self.model(folder, None)
        if isinstance(model, SelectiveForCausalLM):
            for file in folder.iterdir():
                if file.is_file():
                    shutil.copy2(file, to)
            model.config.cache_budgets, model.config.cache_policy = budgets.to_json(), policy
            model.config.save_pretrained(to)
            return
        settings = StockSettings.from_dict(model.config.selattn)
        model.config.selattn = replace(settings, cache_budgets=budgets.to_json(), cache_policy=policy).to_dict()
        model.save_pretrained(to)
        if self.has_tokenizer(folder):
            self.tokenizer(folder, model.config.vocab_size).save_pretrained(to)


class GgufFormat(FolderFormat):
    """One file with config, weights and tokenizer, as transformers reads it: quantised weights become ordinary ones."""

    def owns(self, folder: Path) -> bool:
        return folder.suffix == GGUF

    def config(self, folder: Path) -> Any:
        config = _read_gguf(AutoConfig, folder)
        if config.model_type not in FAMILIES:
            raise SelattnError(f"{folder} is of a model of type {config.model_type!r}, which is not understood")
        return _selecting_nothing(config)

    def check(self, folder: Path) -> None:
        self.config(folder)  # the file's header lists all weights

    def model(self, folder: Path, dtype: torch.dtype | None) -> Any:
        model = _read_gguf(AutoModelForCausalLM, folder, dtype=dtype or torch.float32)
        if getattr(model, "hf_quantizer", None) is not None:  # its weights are ordinary ones by now: it can be trained
            model.hf_quantizer.remove_quantization_config(model)
        return _evicting(model)

    def has_tokenizer(self, folder: Path) -> bool:
        return True

    def tokenizer(self, folder: Path, vocab_size: int) -> Tokenizer:
        return _fitting(Tokenizer(_read_gguf(AutoTokenizer, folder), folder), folder, vocab_size, None)

    def files(self, folder: Path) -> list[Path]:
        return [folder]


class Llama2cFormat(FolderFormat):
    """Folders of llama2.c (Karpathy), with one model `.bin` and its tokenizer `tok*.bin`, as a stock Llama."""

    def owns(self, folder: Path) -> bool:
        return folder.is_dir() and not (folder / CONFIG).exists() and any(folder.glob("tok*.bin"))

    def config(self, folder: Path) -> Any:
        return _selecting_nothing(read_llama2c(_llama2c_files(folder)[0]).config)

    def check(self, folder: Path) -> None:
        self.config(folder)

    def model(self, folder: Path, dtype: torch.dtype | None) -> Any:
        model: Any = read_llama2c(_llama2c_files(folder)[0])
        return _evicting(model if dtype is None else model.to(dtype))

    def has_tokenizer(self, folder: Path) -> bool:
        return True

    def tokenizer(self, folder: Path, vocab_size: int) -> Tokenizer:
        checkpoint, file = _llama2c_files(folder)
        tokenizer = Tokenizer(from_sentencepiece(sentencepiece_from_llama2c(file), str(file)), file)
        if tokenizer.vocab_size != vocab_size:
            raise SelattnError(
                f"{checkpoint.name} has {vocab_size} tokens and {file.name} {tokenizer.vocab_size}: "
                "they do not belong together"
            )
        return tokenizer

    def files(self, folder: Path) -> list[Path]:
        return [_llama2c_files(folder)[0]]


FORMATS: tuple[FolderFormat, ...] = (GgufFormat(), Llama2cFormat(), FolderFormat())


def skeleton(config: Any) -> nn.Module:
    """The model without memory for its weights, on the device `meta`, whatever its size."""
    kind: Any = SelectiveForCausalLM
    if not isinstance(config, SelectiveConfig):
        kind = model_class(family_of_config(config))
    with torch.device("meta"):
        model: nn.Module = kind(config)
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' warnings and bars: what they warn of is checked here, and refused."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def change_config(folder: Path, changes: Mapping[str, Any]) -> None:
    """Write settings, by the names of `SelectiveConfig`, into the config of a saved model of any kind.

    Our decoder has them at the top, a stock model under `selattn`.
    """
    saved = read_json(folder / CONFIG)
    if isinstance(saved.get("selattn"), dict):
        renamed = {"selection_strength": "strength"}
        saved["selattn"] |= {renamed.get(name, name): value for name, value in changes.items()}
    else:
        saved |= changes
    write_json(folder / CONFIG, saved)


# -- weights ----------------------------------------------------------------------------------------------------------


def read_whole(folder: Path, **options: Any) -> Any:
    """The model in a folder with all its weights, and no others; `options` are those of `from_pretrained`."""
    _check_headers(folder)
    options |= {"use_safetensors": True, "trust_remote_code": False}
    options["ignore_mismatched_sizes"] = True  # so that these are named, and refused below
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    except Exception as error:  # a weight that cannot be read, whatever library says so
        raise SelattnError(f"cannot read the weights in {folder}: {first_line(error)}") from error
    model, told = loaded
    for name, stored, wanted in told.get("mismatched_keys") or ():
        raise SelattnError(
            f"cannot read the weights in {folder}: {name} is {list(stored)}, and by the config it is {list(wanted)}"
        )
    for kind, says in (
        ("missing_keys", "lacks {} of its model's weights"),
        ("unexpected_keys", "has {} weights that its config has no place for"),
    ):
        if names := sorted(told.get(kind) or ()):
            raise SelattnError(f"{folder} {says.format(len(names))}, such as {names[0]}: save it again")
    return model


def _check_headers(folder: Path) -> None:
    """Raise unless all files with weights can be read and hold fractions."""
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as weights:
                types = {name: str(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise SelattnError(f"cannot read the weights in {folder}: {file.name}: {first_line(error)}") from error
        for name, dtype in types.items():
            if not dtype.startswith(("F", "BF")):
                raise SelattnError(f"cannot read the weights in {folder}: {name} holds {dtype}, and no fractions")


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights, as transformers chooses them."""
    if (folder / FILE).is_file():
        return [folder / FILE]
    if not (folder / INDEX).is_file():
        pickled = next((file.name for pattern in PICKLES for file in sorted(folder.glob(pattern))), None)
        why = "" if pickled is None else f"; {pickled} can run code when it is read, and is not: save it as safetensors"
        raise SelattnError(f"cannot read the weights in {folder}: there is no {FILE}{why}")
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise SelattnError(f"cannot read the weights in {folder}: {INDEX} does not say in which file each weight is")
    return [folder / name for name in sorted(set(places.values()))]


# -- stock models -----------------------------------------------------------------------------------------------------


def _selecting_nothing(config: Any) -> Any:
    """The config of a stock model as that of a selective one."""
    config.__class__ = config_class(FAMILIES[config.model_type])
    config.selattn = StockSettings(cache_policy=STOCK_POLICY).to_dict()
    return config


def _evicting(model: Any) -> Any:
    """A stock model with the evicting cache; a selective one as it is."""
    if model.config.model_type not in FAMILIES:
        return model
    return make_selective(model, selection=None, cache_policy=STOCK_POLICY)


def _fitting(tokenizer: Tokenizer, where: Path, vocab_size: int, rounded: int | None) -> Tokenizer:
    """The same tokenizer, if a model of this vocabulary can read what it writes.

    The vocabulary may be rounded up to a multiple of `rounded`, or be larger by any number if that is None.
    """
    most = vocab_size if rounded is None else -(-tokenizer.vocab_size // rounded) * rounded
    if not tokenizer.vocab_size <= vocab_size <= most:
        raise SelattnError(
            f"the tokenizer in {where} has {tokenizer.vocab_size} tokens, and its model knows {vocab_size}: "
            "put the one there that the model was trained with"
        )
    return tokenizer


def _read_gguf(auto: Any, file: Path, **options: Any) -> Any:
    """Read the file with an `Auto` class of transformers."""
    require("gguf")
    if not file.is_file():
        raise SelattnError(f"there is no file {file}")
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a bar that transformers has no switch for
            return auto.from_pretrained(file.parent, gguf_file=file.name, **options)
    except Exception as error:  # whatever the library behind it raises
        raise SelattnError(f"cannot read {file}: {first_line(error)}") from error


# -- llama2.c ---------------------------------------------------------------------------------------------------------

_HEADER = struct.Struct("<7i")


def read_llama2c(path: Path) -> LlamaForCausalLM:
    """A llama2.c checkpoint (version 0) as transformers' Llama, in evaluation mode: the same function.

        header   7 int32: d_model, MLP size, layers, heads, key-value heads, vocabulary (negative: untied head), context
        weights  fp32, one kind after another, each for all layers; then the rotary angles, which are computed here

    llama2.c rotates neighbouring pairs of a head's coordinates, Llama's are half a head apart: W_q and W_k change.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror}") from None
    if len(data) < _HEADER.size:
        raise SelattnError(f"{path} is not a llama2.c checkpoint: it has no header")
    d, inner, layers, heads, groups, vocabulary, context = _HEADER.unpack_from(data)
    tied, vocabulary = vocabulary > 0, abs(vocabulary)
    if not (0 < groups <= heads <= d <= 1 << 20 and layers > 0 and inner > 0 and context > 0) or d % heads:
        raise SelattnError(f"{path} is not a llama2.c checkpoint of version 0: its sizes make no sense")
    head = d // heads
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("model.embed_tokens", (vocabulary, d)),
        ("input_layernorm", (layers, d)),
        ("self_attn.q_proj", (layers, d, d)),
        ("self_attn.k_proj", (layers, groups * head, d)),
        ("self_attn.v_proj", (layers, groups * head, d)),
        ("self_attn.o_proj", (layers, d, d)),
        ("post_attention_layernorm", (layers, d)),
        ("mlp.gate_proj", (layers, inner, d)),
        ("mlp.down_proj", (layers, d, inner)),
        ("mlp.up_proj", (layers, inner, d)),
        ("model.norm", (d,)),
        ("angles", (context, head)),
        ("lm_head", (0 if tied else vocabulary, d)),
    ]
    size = sum(math.prod(shape) for _, shape in shapes)
    if len(data) != _HEADER.size + 4 * size:
        raise SelattnError(
            f"{path} is not a whole llama2.c checkpoint: {len(data)} bytes, not {_HEADER.size + 4 * size}"
        )
    numbers = np.frombuffer(data, "<f4", offset=_HEADER.size)
    weights: dict[str, torch.Tensor] = {}
    begin = 0
    for name, shape in shapes:
        end = begin + math.prod(shape)
        weight = torch.from_numpy(numbers[begin:end].reshape(shape).copy())
        begin = end
        if name in ("self_attn.q_proj", "self_attn.k_proj"):
            pairs = weight.unflatten(1, (-1, head // 2, 2))  # [layers, heads, pairs, 2, d_model]
            weight = pairs.transpose(2, 3).flatten(1, 3)
        if name in ("model.embed_tokens", "model.norm", "lm_head"):
            weights[f"{name}.weight"] = weight
        elif name != "angles":
            weights |= {f"model.layers.{layer}.{name}.weight": part for layer, part in enumerate(weight)}
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=d,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head,
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=1,  # its programs stop where the next document would begin
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(weights)
    return model.eval()


def _llama2c_files(folder: Path) -> tuple[Path, Path]:
    """The checkpoint and the tokenizer in a folder of llama2.c."""
    files = sorted(folder.glob("*.bin"))
    tokens = [file for file in files if file.name.startswith("tok")]
    models = [file for file in files if file not in tokens]
    if len(tokens) != 1 or len(models) != 1:
        raise SelattnError(
            f"{folder} has {len(models)} model .bin and {len(tokens)} tok*.bin: a llama2.c checkpoint is one of each"
        )
    return models[0], tokens[0]
